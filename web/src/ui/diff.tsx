// A unified diff from the gateway.
import { cx } from "@/lib";

export function Diff({ text }: { text: string }) {
  return (
    <pre tabIndex={0} aria-label="Difference" className="max-h-[60vh] overflow-auto bg-panel py-2 text-xs leading-5">
      {text.replace(/\n$/, "").split("\n").map((line, at) => {
        const kind = /^(\+\+\+|---)/.test(line) ? "head" : line[0];
        return (
          <span key={at} className={cx("block px-3.5 break-all whitespace-pre-wrap", kind === "+" && "bg-ok-soft text-ok", kind === "-" && "bg-bad-soft text-bad", (kind === "@" || kind === "head") && "text-faint")}>
            {line || " "}
          </span>
        );
      })}
    </pre>
  );
}
