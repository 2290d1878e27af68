// How are sizes, times and numbers written? As the command line writes them.

export function size(nbytes: number): string {
  if (nbytes < 1024) return `${nbytes} B`;
  let amount = nbytes;
  for (const unit of ["KiB", "MiB", "GiB", "TiB"]) {
    amount /= 1024;
    if (amount < 1024) return `${amount.toFixed(1)} ${unit}`;
  }
  return `${(amount / 1024).toFixed(1)} PiB`;
}

export function count(n: number, what: string): string {
  return `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;
}

export function num(value: number | string | null | undefined): string {
  if (value === null || value === undefined) return "";
  if (typeof value === "string") return value;
  if (value === 0) return "0";
  const text = value.toPrecision(5);
  const short = text.includes("e") ? text.replace(/\.?0+e/, "e") : text.includes(".") ? text.replace(/\.?0+$/, "") : text;
  return Math.abs(value) >= 1e5 && !text.includes("e") ? value.toExponential(3) : short;
}

/** What a chart can draw of it; null leaves a gap. */
export function drawable(value: number | string | null | undefined): number | null {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

export function seconds(value: number | null): string {
  if (value === null) return "";
  if (value === 0) return "0 s";
  if (value < 0.01) return `${(value * 1000).toFixed(1)} ms`;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  return value < 100 ? `${value.toFixed(2)} s` : `${Math.round(value)} s`;
}

export function moment(at: number | null): string {
  if (!at) return "";
  const date = new Date(at * 1000);
  const pad = (n: number) => String(n).padStart(2, "0");
  return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
}

export function shape(sides: number[]): string {
  return sides.length ? sides.join(" × ") : "scalar";
}

export function box(start: number[], stop: number[]): string {
  return `[${start.map((at, dim) => `${at}:${stop[dim]}`).join(", ")}]`;
}

export function percent(part: number): string {
  if (part === 1) return "100%";
  return `${(100 * part).toFixed(part < 0.1 ? 2 : 1)}%`;
}

export function overRead(wanted: number, read: number): string {
  return wanted ? `${(read / wanted).toFixed(2)} ×` : "";
}
