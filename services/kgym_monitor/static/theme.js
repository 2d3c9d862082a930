// Runs before the page is drawn: the reader's choice of light or dark, else the system's.
const chosen = localStorage.getItem("theme");
if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
