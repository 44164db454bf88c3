// Time charts with uPlot. Loaded with the first page that has a chart.
import "uplot/dist/uPlot.min.css";

import { useEffect, useRef } from "react";
import uPlot from "uplot";

export type Series = { label: string; color: string; bars?: boolean; fill?: boolean; values: (number | null)[] };

/** Resolves a theme colour for the canvas. */
function color(host: HTMLElement, name: string): string {
  const probe = document.createElement("span");
  probe.style.color = `var(--color-${name})`;
  host.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

export default function Chart({ times, series, format, height = 120, label }: { times: number[]; series: Series[]; format: (value: number) => string; height?: number; label: string }) {
  const host = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const at = host.current!;
    let plot: uPlot | undefined;
    const draw = () => {
      plot?.destroy();
      const line = color(at, "line");
      const faint = color(at, "faint");
      const font = "11px Inter, sans-serif";
      const axis: uPlot.Axis = { stroke: faint, font, grid: { stroke: line, width: 1 }, ticks: { show: false } };
      plot = new uPlot(
        {
          width: at.clientWidth,
          height,
          padding: [8, 20, 0, 0],
          legend: { show: false },
          cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
          scales: { y: { range: (_, __, max) => [0, Math.max(max * 1.08, 1)] } },
          axes: [
            { ...axis, grid: { show: false }, space: 70, values: "{HH}:{mm}" as never, size: 26 },
            { ...axis, size: 56, space: 28, values: (_, splits) => splits.map((value) => format(value)) },
          ],
          series: [
            {},
            ...series.map((one) => {
              const stroke = color(at, one.color);
              return {
                label: one.label,
                stroke,
                width: one.bars ? 0 : 1.5,
                spanGaps: true,
                points: { show: !one.bars, size: 4, fill: stroke },
                ...(one.bars ? { fill: stroke, paths: uPlot.paths.bars!({ size: [0.72, 24], radius: 0.15 }) } : one.fill ? { fill: `color-mix(in srgb, ${stroke} 14%, transparent)` } : {}),
              };
            }),
          ],
        },
        [times, ...series.map((one) => one.values)] as uPlot.AlignedData,
        at,
      );
    };
    draw();
    const sized = new ResizeObserver(() => plot && plot.width !== at.clientWidth && plot.setSize({ width: at.clientWidth, height }));
    sized.observe(at);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", draw);
    addEventListener("theme", draw);
    return () => {
      sized.disconnect();
      scheme.removeEventListener("change", draw);
      removeEventListener("theme", draw);
      plot?.destroy();
    };
  }, [times, series, format, height]);
  // The plot has a fixed width, which must not keep its parent from becoming narrower.
  return (
    <div role="img" aria-label={label} className="relative min-w-0" style={{ height }}>
      <div ref={host} className="absolute inset-0 overflow-hidden" />
    </div>
  );
}
