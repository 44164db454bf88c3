// A row that scrolls sideways. Where there is more of it, it fades out and has a button.
import { ChevronLeft, ChevronRight } from "lucide-react";
import { useLayoutEffect, useRef, useState, type ReactNode } from "react";

import { cx } from "@/lib";

/** Length of the fade in pixels, which is also the width of a button. */
const FADE_PX = 40;
/** Positions are fractions of pixels. */
const TOLERANCE_PX = 2;

const EDGE = "absolute inset-y-0 z-10 flex w-8 items-center justify-center text-muted hover:text-text [&_svg]:size-4";

/** `what` is the plural of the items, for the names of the buttons. `className` is for the row itself. */
export function Scroller({ what, className, children }: { what: string; className?: string; children: ReactNode }) {
  const row = useRef<HTMLDivElement>(null);
  const [more, setMore] = useState({ before: false, after: false });
  const look = () => {
    const { scrollLeft, scrollWidth, clientWidth } = row.current!;
    const before = scrollLeft > TOLERANCE_PX;
    const after = scrollLeft + clientWidth < scrollWidth - TOLERANCE_PX;
    setMore((old) => (old.before === before && old.after === after ? old : { before, after }));
  };
  // The width of the items can change with each render.
  useLayoutEffect(look);
  useLayoutEffect(() => {
    const sized = new ResizeObserver(look);
    sized.observe(row.current!);
    return () => sized.disconnect();
  }, []);
  const scroll = (direction: 1 | -1) => row.current!.scrollBy({ left: direction * row.current!.clientWidth * 0.7, behavior: "smooth" });
  const fade = `linear-gradient(to right, ${more.before ? "transparent" : "black"}, black ${FADE_PX}px, black calc(100% - ${FADE_PX}px), ${more.after ? "transparent" : "black"})`;
  return (
    <div className="relative flex max-w-full min-w-0">
      {more.before && (
        <button type="button" aria-label={`Show the ${what} before`} onClick={() => scroll(-1)} className={cx(EDGE, "left-0")}>
          <ChevronLeft aria-hidden />
        </button>
      )}
      <div ref={row} onScroll={look} className={cx("flex min-w-0 overflow-x-auto [scrollbar-width:none]", className)} style={{ maskImage: more.before || more.after ? fade : undefined }}>
        {children}
      </div>
      {more.after && (
        <button type="button" aria-label={`Show more ${what}`} onClick={() => scroll(1)} className={cx(EDGE, "right-0")}>
          <ChevronRight aria-hidden />
        </button>
      )}
    </div>
  );
}
