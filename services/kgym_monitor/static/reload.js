// Asks for a page again that says that it is not ready yet.
const waiting = document.querySelector("[data-reload]");
if (waiting) setTimeout(() => location.reload(), Number(waiting.dataset.reload));
