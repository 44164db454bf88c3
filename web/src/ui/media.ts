import { useEffect, useState, useSyncExternalStore } from "react";

export function useMedia(query: string): boolean {
  return useSyncExternalStore(
    (listener) => {
      const list = matchMedia(query);
      list.addEventListener("change", listener);
      return () => list.removeEventListener("change", listener);
    },
    () => matchMedia(query).matches,
  );
}

export const useIsWide = () => useMedia("(min-width: 768px)");

export type Theme = "system" | "light" | "dark";

export function theme(): Theme {
  const chosen = document.documentElement.dataset["theme"];
  return chosen === "light" || chosen === "dark" ? chosen : "system";
}

export function setTheme(to: Theme) {
  if (to === "system") {
    delete document.documentElement.dataset["theme"];
    localStorage.removeItem("theme");
  } else {
    document.documentElement.dataset["theme"] = to;
    localStorage.setItem("theme", to);
  }
  dispatchEvent(new Event("theme"));
}

/** Returns the active theme: the chosen one, or the system's. */
export function useTheme(): "light" | "dark" {
  const isDark = useMedia("(prefers-color-scheme: dark)");
  const chosen = useSyncExternalStore((listener) => (addEventListener("theme", listener), () => removeEventListener("theme", listener)), theme);
  return chosen === "system" ? (isDark ? "dark" : "light") : chosen;
}

/** Returns the time in milliseconds since 1970, updated every second. */
export function useNow(): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return now;
}

/** Returns the value after it has not changed for a while, and the first one at once. */
export function useSettled<T>(value: T, ms: number): T {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), ms);
    return () => clearTimeout(timer);
  }, [value, ms]);
  return settled;
}

/** Sets the title of the browser tab. */
export function useTitle(name: string | undefined) {
  useEffect(() => {
    document.title = name ? `${name} · Toolwharf` : "Toolwharf";
  }, [name]);
}
