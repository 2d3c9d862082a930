// Crash reports are loaded when they come into sight: a job has many, and they are long.
const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    seen.unobserve(entry.target);
    load(entry.target, entry.target.dataset.report);
  }
}, { rootMargin: "400px" });

function load(place, address) {
  htmx.ajax("GET", address, { target: place, swap: "innerHTML" });
}

export function loadReports() {
  for (const place of document.querySelectorAll("div[data-report]:not([data-loaded])")) {
    place.dataset.loaded = "";
    seen.observe(place);
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-report]");
  if (button) load(button.closest("div[data-report]"), button.dataset.report);
});
