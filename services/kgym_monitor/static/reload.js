// Reloads a page that is not ready yet.
const waiting = document.querySelector("[data-reload]");
if (waiting) setTimeout(() => location.reload(), Number(waiting.dataset.reload));
