// Sets the theme chosen in this browser, before the first paint.
const chosen = localStorage.getItem("theme");
if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
