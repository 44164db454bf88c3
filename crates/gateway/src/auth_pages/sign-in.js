// Signs this browser in. Forms are posted by script, because the response contains the session's page secret. It is stored in this origin's
// storage, which pages on other ports of this host cannot read. (They do receive the cookie.)
"use strict";
/** The address of the gateway, which a proxy may serve below a path. */
const ROOT = new URL("..", document.currentScript.src);
/** The key of the session in the storage. Gateways below different paths of a host share the storage. */
const SESSION = `toolwharf-session${ROOT.pathname.slice(0, -1)}`;
const WAITING = "toolwharf-sign-in";
const at = (path) => new URL(path, ROOT);
const SIGN_IN = at("sign-in");
const CALLBACK = at("sign-in/callback");
const why = document.getElementById("why");
const enter = document.getElementById("enter");
const buttons = () => document.querySelectorAll("button");

const post = async (path, fields) => {
  const response = await fetch(path, { method: "POST", headers: { "x-requested-with": "toolwharf" }, body: new URLSearchParams(fields) });
  const answer = await response.json().catch(() => ({}));
  // A form token works once.
  if (answer.form) enter.elements.form.value = answer.form;
  if (!response.ok) throw new Error(answer.why || `Toolwharf answered ${response.status}. Try again.`);
  return answer;
};

/** Runs one step at a time, and shows errors. */
const step = async (act) => {
  why.textContent = "";
  for (const button of buttons()) button.disabled = true;
  try {
    await act();
  } catch (error) {
    why.textContent = error instanceof TypeError ? "Toolwharf does not answer. Is it still running?" : error.message;
    for (const button of buttons()) button.disabled = false;
  }
};

const signIn = (path, fields) =>
  step(async () => {
    const { session, next } = await post(path, fields);
    localStorage.setItem(SESSION, session);
    location.replace(at(`.${next}`));
  });

const form = () => ({ form: enter.elements.form.value, next: enter.elements.next.value });

enter.addEventListener("submit", (event) => {
  event.preventDefault();
  const key = enter.elements.key.value;
  enter.elements.key.value = "";
  void signIn(SIGN_IN, { ...form(), key });
});

for (const button of document.querySelectorAll("[data-issuer]"))
  button.addEventListener("click", () =>
    step(async () => {
      const { url, browser } = await post(at(`sign-in/with/${button.dataset.issuer}`), form());
      sessionStorage.setItem(WAITING, browser);
      location.assign(url);
    }),
  );

/** A link's secret, or a key, follows the #, which browsers do not send. It is removed from the address bar and sent in a body. */
const take = () => {
  const hash = location.hash.slice(1);
  if (!hash) return;
  history.replaceState(null, "", location.pathname + location.search);
  const key = new URLSearchParams(hash).get("key");
  void signIn(SIGN_IN, { ...form(), ...(key ? { key } : { link: hash }) });
};

if (location.pathname === CALLBACK.pathname) {
  const answer = new URLSearchParams(location.search);
  answer.set("browser", sessionStorage.getItem(WAITING) ?? "");
  sessionStorage.removeItem(WAITING);
  history.replaceState(null, "", SIGN_IN);
  void signIn(CALLBACK, answer);
} else {
  addEventListener("hashchange", take);
  take();
}
