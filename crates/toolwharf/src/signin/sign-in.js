// A link's secret is behind the #, which is not sent: it leaves the address bar, and goes into the body of the form.
"use strict";
const take = () => {
  const link = location.hash.slice(1);
  if (!link) return;
  history.replaceState(null, "", location.pathname + location.search);
  document.getElementById("link").value = link;
  document.getElementById("enter").submit();
};
addEventListener("hashchange", take);
take();
