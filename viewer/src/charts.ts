// How are numbers drawn? Lines over steps or time by uPlot, histograms as SVG.
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { h, s } from "./dom";
import { colour } from "./theme";
import { num } from "./words";

export interface Line {
  label: string;
  values: (number | null)[];
  /** How a value is written. */
  text?: (value: number) => string;
  /** Whether marks stand at powers of two. */
  isBytes?: boolean;
  /** Whether the axis begins at 0. */
  fromZero?: boolean;
}

export interface Axis {
  label: string;
  values: number[];
  isTime: boolean;
}

/** Lines over a common axis, as wide as there is room; `key` links the pointers of several. */
export function lines(title: string, axis: Axis, series: Line[], key: string, height = 170): HTMLElement {
  const element = h("figure", { class: "chart" });
  const said = h("figcaption", {}, title);
  const readout = h("output", { class: "readout" });
  const plot = h("div", { class: "plot", role: "img", "aria-label": describe(title, series) });
  element.append(h("div", { class: "chart-head" }, said, readout), plot);
  let chart: uPlot | null = null;
  const text = (line: Line, value: number | null | undefined) =>
    value === null || value === undefined ? "–" : (line.text ?? num)(value);
  const tell = (at: number | null) => {
    const index = at ?? axis.values.length - 1;
    const where = axis.values[index];
    if (where === undefined) return;
    const x = axis.isTime ? new Date(where * 1000).toLocaleString("sv").slice(5, 16) : `${axis.label} ${where}`;
    readout.textContent = `${x}: ${series.map((line) => `${series.length > 1 ? `${line.label} ` : ""}${text(line, line.values[index])}`).join(", ")}`;
  };
  const draw = () => {
    const width = plot.clientWidth;
    chart?.destroy();
    chart = null;
    if (!width) return;
    const quiet = colour("muted");
    const grid = { stroke: colour("line"), width: 1 };
    const axes = { stroke: quiet, grid, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const known = series.flatMap((line) => line.values.filter((value) => value !== null));
    const widest = Math.max(4, ...[Math.min(...known), Math.max(...known)].map((value) => (series[0].text ?? num)(value).length));
    chart = new uPlot(
      {
        width,
        height,
        legend: { show: false },
        cursor: { sync: { key }, y: false, points: { size: 7 } },
        scales: { x: { time: axis.isTime }, y: { range: series[0].fromZero ? up : room } },
        axes: [
          { ...axes, space: 70, size: 28, values: (_u, ticks, _at, _space, step) => ticks.map((tick) => (axis.isTime ? clock(tick, step) : num(tick))) },
          { ...axes, size: 16 + 6.6 * widest, incrs: series[0].isBytes ? POWERS : undefined, values: (_, ticks) => ticks.map((tick) => (series[0].text ?? num)(tick)) },
        ],
        series: [
          {},
          ...series.map((line, n) => ({
            label: line.label,
            stroke: n ? quiet : colour("accent"),
            width: 1.75,
            dash: n ? [4, 3] : undefined,
            points: { show: axis.values.length < 200, size: 6, fill: n ? quiet : colour("accent") },
            spanGaps: true,
          })),
        ],
        hooks: { setCursor: [(u) => tell(u.cursor.idx ?? null)] },
      },
      [axis.values, ...series.map((line) => line.values)] as uPlot.AlignedData,
      plot,
    );
  };
  tell(null);
  new ResizeObserver(draw).observe(plot);
  return element;
}

const POWERS = Array.from({ length: 50 }, (_, n) => 2 ** n);

function up(_: uPlot, _least: number, most: number): uPlot.Range.MinMax {
  return [0, most > 0 ? most * 1.12 : 1];
}

/** A time on an axis whose marks are so many seconds apart. */
function clock(at: number, step: number): string {
  const text = new Date(at * 1000).toLocaleString("sv");
  return step >= 86400 ? text.slice(5, 10) : step >= 60 ? text.slice(11, 16) : text.slice(11, 19);
}

function room(_: uPlot, least: number, most: number): uPlot.Range.MinMax {
  if (least === null || most === null) return [0, 1];
  const extra = most > least ? (most - least) * 0.08 : Math.abs(most) * 0.1 || 1;
  return [least >= 0 && least - extra < 0 ? 0 : least - extra, most + extra];
}

function describe(title: string, series: Line[]): string {
  const said = series.map((line) => {
    const known = line.values.filter((value): value is number => value !== null);
    if (!known.length) return `${line.label}: no values`;
    const text = line.text ?? num;
    return `${line.label} from ${text(known[0])} to ${text(known[known.length - 1])}`;
  });
  return `${title}: ${said.join("; ")}`;
}

/** Bars of how many values lie where; a second one is drawn over the first. */
export function histogram(bins: number[][], least: number, most: number, isLog: boolean, names: string[]): HTMLElement {
  const width = 640;
  const height = 180;
  const tall = Math.max(1, ...bins.flat());
  const up = (n: number) => (n <= 0 ? 0 : isLog ? Math.log1p(n) / Math.log1p(tall) : n / tall) * (height - 8);
  const step = width / bins[0].length;
  const edge = (n: number) => least + ((most - least) * n) / bins[0].length;
  const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": `Histogram of ${names.join(" and ")} from ${num(least)} to ${num(most)}` });
  bins[0].forEach((n, at) => {
    const title = s("title", {}, `${num(edge(at))} to ${num(edge(at + 1))}: ${n.toLocaleString("en")}`);
    svg.append(s("rect", { class: "bar", x: at * step + 0.5, width: Math.max(1, step - 1), y: height - up(n), height: up(n) }, title));
  });
  if (bins[1]) {
    const points = bins[1].flatMap((n, at) => [`${at * step},${height - up(n)}`, `${(at + 1) * step},${height - up(n)}`]);
    svg.append(s("polyline", { class: "outline", points: `0,${height} ${points.join(" ")} ${width},${height}` }));
  }
  const marks = [least, least / 2 + most / 2, most].map((value) => h("span", {}, num(value)));
  return h("div", { class: "histogram" }, svg, h("div", { class: "scale" }, marks));
}
