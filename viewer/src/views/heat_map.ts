// What does a slice look like? Each cell a colour; of a large one, every n-th row and column.
import type { Slice, Tensor } from "../answers";
import { get, isReport } from "../api";
import { heat, ODD } from "../colours";
import { card, choice, h, notice, replace, waiting } from "../dom";
import { problem } from "../main";
import { go, here } from "../route";
import { num } from "../words";

const NAMES = ["row_dim", "column_dim", "index", "rows", "columns"];

export function heatCard(tensor: Tensor, query: Record<string, string>, signal: AbortSignal): HTMLElement {
  if (tensor.shape.includes(0)) return card("A slice", null, notice("Nothing to show", "The tensor has no cells."));
  const body = h("div", {}, waiting("Reading …"));
  const asked: Record<string, string> = { at: query.at, key: tensor.key };
  if (!isReport) for (const name of NAMES) if (query[name]) asked[name] = query[name];
  get<Slice>("slice", asked, signal).then(
    (found) => replace(body, picture(found), isReport ? null : form(tensor, query, found)),
    (error) => signal.aborted || replace(body, problem(error), isReport ? null : h("button", { type: "button", click: () => change({ index: undefined, rows: undefined, columns: undefined }) }, "Show the whole slice")),
  );
  return card("A slice", null, body);
}

function change(changed: Record<string, string | undefined>): void {
  const { query } = here();
  go("tensor", { ...query, ...changed } as Record<string, string>);
}

function decoded(cells: string): Float32Array {
  return new Float32Array(Uint8Array.from(atob(cells), (c) => c.charCodeAt(0)).buffer);
}

function picture(found: Slice): HTMLElement {
  const [firstRow, rowStep, rows] = found.rows;
  const [firstColumn, columnStep, columns] = found.columns;
  const cells = decoded(found.cells);
  let most = 0;
  for (const value of cells) if (Number.isFinite(value)) most = Math.max(most, Math.abs(value));
  const canvas = h("canvas", { width: columns, height: rows, class: "heat", role: "img", "aria-label": `Heat map of ${rows} by ${columns} cells, values up to ${num(most)}` });
  const image = new ImageData(columns, rows);
  cells.forEach((value, n) => {
    const [red, green, blue] = Number.isFinite(value) ? heat(most ? value / most : 0) : ODD;
    image.data.set([red, green, blue, 255], 4 * n);
  });
  canvas.getContext("2d")!.putImageData(image, 0, 0);
  canvas.style.aspectRatio = `${Math.max(1, Math.min(8, columns / rows))}`;
  const said = h("output", { class: "said" });
  const steps = [rowStep > 1 && `every ${ordinal(rowStep)} row`, columnStep > 1 && `every ${ordinal(columnStep)} column`].filter(Boolean);
  const every = steps.length ? ` Shown is ${steps.join(" and ")}.` : "";
  const hint = `${rows.toLocaleString("en")} × ${columns.toLocaleString("en")} cells.${every} Point at a cell for its value${isReport ? "" : ", click to look closer"}.`;
  said.textContent = hint;
  const cellAt = (event: MouseEvent): [number, number] => {
    const frame = canvas.getBoundingClientRect();
    const row = Math.min(rows - 1, Math.floor(((event.clientY - frame.top) / frame.height) * rows));
    const column = Math.min(columns - 1, Math.floor(((event.clientX - frame.left) / frame.width) * columns));
    return [Math.max(0, row), Math.max(0, column)];
  };
  canvas.addEventListener("pointermove", (event) => {
    const [row, column] = cellAt(event);
    const index = [...found.index];
    if (found.row_dim !== null) index[found.row_dim] = firstRow + row * rowStep;
    index[found.column_dim] = firstColumn + column * columnStep;
    said.textContent = `[${index.join(", ")}] = ${num(cells[row * columns + column])}`;
  });
  canvas.addEventListener("pointerleave", () => (said.textContent = hint));
  if (!isReport) {
    canvas.addEventListener("click", (event) => {
      const [row, column] = cellAt(event);
      const closer = (at: number, first: number, step: number, n: number) => {
        const span = Math.max(8, Math.ceil((n * step) / 4));
        const start = Math.max(first, Math.min(first + at * step - Math.floor(span / 2), first + n * step - span));
        return `${start}:${Math.min(start + span, first + n * step)}`;
      };
      change({
        index: found.index.join(","),
        rows: found.row_dim === null || rows < 16 ? undefined : closer(row, firstRow, rowStep, rows),
        columns: columns < 16 ? undefined : closer(column, firstColumn, columnStep, columns),
      });
    });
  }
  const scale = h("canvas", { width: 101, height: 1, class: "heat-scale", "aria-hidden": "true" });
  const colours = new ImageData(101, 1);
  for (let n = 0; n <= 100; n++) colours.data.set([...heat((n - 50) / 50), 255], 4 * n);
  scale.getContext("2d")!.putImageData(colours, 0, 0);
  return h("div", { class: "heat-holder" }, canvas, h("div", { class: "scale" }, h("span", {}, num(-most)), scale, h("span", {}, num(most))), said);
}

function ordinal(n: number): string {
  const last = n % 100 > 10 && n % 100 < 14 ? 0 : n % 10;
  return `${n.toLocaleString("en")}${["th", "st", "nd", "rd"][last] ?? "th"}`;
}

/** What is shown can be typed, too. */
function form(tensor: Tensor, query: Record<string, string>, found: Slice): HTMLElement {
  const range = (label: string, name: string, [first, step, n]: [number, number, number], side: number) => {
    const whole = `${first}:${Math.min(side, first + step * n)}`;
    const input = h("input", { type: "text", value: query[name] ?? whole, size: 12, change: () => change({ [name]: input.value.replace(/\s/g, "") }) });
    return h("label", { class: "field" }, h("span", {}, label), input);
  };
  const rank = tensor.shape.length;
  const parts: HTMLElement[] = [];
  if (rank > 2) {
    const dims = tensor.shape.map((side, dim): [string, string] => [String(dim), `dim ${dim} (${side})`]);
    const reset = { rows: undefined, columns: undefined };
    parts.push(
      choice("down", dims, String(found.row_dim), (value) => change({ ...reset, row_dim: value, column_dim: String(found.column_dim) })),
      choice("across", dims, String(found.column_dim), (value) => change({ ...reset, column_dim: value, row_dim: String(found.row_dim) })),
    );
    const index = h("input", { type: "text", value: found.index.join(","), size: 12, change: () => change({ index: index.value.replace(/\s/g, "") }) });
    parts.push(h("label", { class: "field" }, h("span", {}, "index"), index));
  }
  if (found.row_dim !== null) parts.push(range("rows", "rows", found.rows, tensor.shape[found.row_dim]));
  if (rank) parts.push(range("columns", "columns", found.columns, tensor.shape[found.column_dim]));
  if (query.rows || query.columns) parts.push(h("button", { type: "button", class: "small", click: () => change({ rows: undefined, columns: undefined }) }, "Whole slice"));
  return h("div", { class: "row" }, parts);
}
