// Shared helpers of the pages: class names, formatting of times and sizes, and values outside of components.
import { useSyncExternalStore } from "react";

export function cx(...names: (string | number | false | null | undefined)[]): string {
  return names.filter(Boolean).join(" ");
}

export function duration(seconds: number): string {
  if (seconds < 60) return `${Math.floor(seconds)}s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m ${Math.floor(seconds % 60)}s`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)}h ${Math.floor((seconds % 3600) / 60)}m`;
  return `${Math.floor(seconds / 86_400)}d ${Math.floor((seconds % 86_400) / 3600)}h`;
}

/** The sandbox of a server. Before the first start, it is not decided which one. */
export const sandboxWord = (sandbox: string) => (sandbox === "any" ? "sandbox" : sandbox);

export function micros(us: number): string {
  if (us === 0) return "0";
  if (us < 1000) return `${us} µs`;
  if (us < 1_000_000) return `${(us / 1000).toFixed(us < 10_000 ? 1 : 0)} ms`;
  return `${(us / 1_000_000).toFixed(us < 10_000_000 ? 2 : 1)} s`;
}

export function bytes(count: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) (count /= 1024), unit++;
  return `${count < 10 && unit > 0 ? count.toFixed(1) : Math.round(count)} ${units[unit]}`;
}

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
export const count = (number: number) => (number < 10_000 ? number.toLocaleString("en") : compact.format(number));

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const dated = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

/** Formats the time of day, with the date if it is not today. */
export function moment(at: string): string {
  const date = new Date(at);
  return date.toDateString() === new Date().toDateString() ? clock.format(date) : dated.format(date);
}

export function ago(at: string, now = Date.now()): string {
  const seconds = Math.max(0, (now - new Date(at).getTime()) / 1000);
  return seconds < 2 ? "just now" : `${duration(seconds).split(" ")[0]} ago`;
}

export const plural = (number: number, one: string, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

/** Copies text to the clipboard. Returns false if the browser does not allow that. */
export async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

/** Describes the network that a sandbox allows. */
export function reach(network: unknown): string {
  if (network === "open") return "everything";
  const hosts = Array.isArray(network) ? network : (network as { allow?: string[] } | null | undefined)?.allow;
  return Array.isArray(hosts) && hosts.length ? `only ${hosts.join(", ")}` : "none";
}

/** Saves text as a file of the user. */
export function save(name: string, parts: string[]) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(parts, { type: "text/plain" }));
  link.download = name;
  link.click();
  // The browser reads the address later.
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** A value outside of components that components can show. */
export function store<T>(value: T) {
  const listeners = new Set<() => void>();
  const listen = (listener: () => void) => (listeners.add(listener), () => void listeners.delete(listener));
  return {
    get: () => value,
    set(next: T) {
      value = next;
      listeners.forEach((listener) => listener());
    },
    use: () => useSyncExternalStore(listen, () => value),
  };
}
