// Who holds which box? The tensor as a rectangle of two of its dims, cut as it is stored.
import type { Tensor } from "../answers";
import { rankColour } from "../colours";
import { card, choice, h, notice, replace, s } from "../dom";
import { box, count, size } from "../words";

const DRAWN = 3000;
const WIDTH = 1000;

export function tilingCard(tensor: Tensor): HTMLElement {
  if (!tensor.box_count) return card("Who holds what", null, notice("Stored nowhere", "The tensor has no cells."));
  const rank = tensor.shape.length;
  const chosen = { row: 0, column: Math.min(1, rank - 1), index: tensor.shape.map(() => 0) };
  const picture = h("div", { class: "tiling" });
  const said = h("output", { class: "said" });
  const controls: HTMLElement[] = [];
  const draw = () => replace(picture, drawing(tensor, chosen, (n) => (said.textContent = n === null ? hint(tensor) : describe(tensor, n))));
  if (rank > 2) {
    const dims = tensor.shape.map((side, dim): [string, string] => [String(dim), `dim ${dim} (${side})`]);
    controls.push(
      choice("down", dims, "0", (value) => ((chosen.row = Number(value)), draw())),
      choice("across", dims, "1", (value) => ((chosen.column = Number(value)), draw())),
    );
  }
  said.textContent = hint(tensor);
  draw();
  return card("Who holds what", controls, picture, said, legend(tensor), list(tensor));
}

function holder(tensor: Tensor, file: number): string {
  return tensor.ranks ? `rank ${tensor.ranks[file]}` : `file ${file}`;
}

function hint(tensor: Tensor): string {
  return `${count(tensor.box_count, "box").replace("boxs", "boxes")}. Point at one, or walk with Tab, to see where its bytes are.`;
}

function describe(tensor: Tensor, n: number): string {
  const file = tensor.file_of[n];
  const place = tensor.bytes[n];
  const bytes = place ? `, bytes ${place[0].toLocaleString("en")} to ${place[1].toLocaleString("en")} (${size(place[1] - place[0])})` : "";
  return `${box(tensor.starts[n], tensor.stops[n])}: ${holder(tensor, file)}, ${tensor.files[file]}${bytes}`;
}

function numberOf(tensor: Tensor, n: number): number {
  return tensor.ranks ? tensor.ranks[tensor.file_of[n]] : tensor.file_of[n];
}

/** The boxes that meet the drawn plane; sides are drawn to scale, but never too thin to see. */
function drawing(tensor: Tensor, chosen: { row: number; column: number; index: number[] }, tell: (n: number | null) => void): SVGElement {
  const { row, column, index } = chosen;
  const rank = tensor.shape.length;
  const tall = rank > 1 && row !== column ? tensor.shape[row] : 1;
  const wide = rank ? tensor.shape[column] : 1;
  const height = Math.max(70, Math.min(420, (WIDTH * tall) / wide));
  const across = rank ? WIDTH / wide : WIDTH;
  const down = height / tall;
  const svg = s("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "group", "aria-label": `Boxes of ${tensor.key}`, class: "tiles-svg" });
  let drawn = 0;
  tensor.starts.forEach((start, n) => {
    const stop = tensor.stops[n];
    const meets = start.every((at, dim) => dim === row || dim === column || (at <= index[dim] && index[dim] < stop[dim]));
    if (!meets || drawn >= DRAWN) return;
    drawn += 1;
    const x = rank ? start[column] * across : 0;
    const w = rank ? (stop[column] - start[column]) * across : WIDTH;
    const y = tall > 1 ? start[row] * down : 0;
    const high = tall > 1 ? (stop[row] - start[row]) * down : height;
    const label = describe(tensor, n);
    const shape = s("rect", { x: x + 1, y: y + 1, width: Math.max(0.5, w - 2), height: Math.max(0.5, high - 2), rx: 3, fill: rankColour(numberOf(tensor, n)) });
    const text = w > 90 && high > 24 && s("text", { x: x + w / 2, y: y + high / 2 + 5, "text-anchor": "middle" }, holder(tensor, tensor.file_of[n]));
    svg.append(
      s(
        "g",
        {
          class: "tile-box",
          tabindex: drawn <= 64 ? 0 : -1,
          role: "img",
          "aria-label": label,
          pointerenter: () => tell(n),
          pointerleave: () => tell(null),
          click: () => tell(n),
          focus: () => tell(n),
          blur: () => tell(null),
        },
        s("title", {}, label),
        shape,
        text,
      ),
    );
  });
  return svg;
}

function legend(tensor: Tensor): HTMLElement {
  const seen = new Map<number, string>();
  tensor.files.forEach((_, file) => {
    const n = tensor.ranks ? tensor.ranks[file] : file;
    seen.set(n, tensor.ranks ? `rank ${n}` : tensor.files[file]);
  });
  const keys = [...seen].sort((a, b) => a[0] - b[0]);
  return h("div", { class: "keys" }, keys.slice(0, 24).map(([n, name]) => h("span", { class: "key" }, h("i", { style: { background: rankColour(n) } }), name)), keys.length > 24 && h("span", { class: "quiet" }, `and ${keys.length - 24} more`));
}

const LISTED = 200;

function list(tensor: Tensor): HTMLElement {
  const rows = tensor.starts.slice(0, LISTED).map((start, n) => {
    const place = tensor.bytes[n];
    return h(
      "tr",
      {},
      h("td", {}, h("code", {}, box(start, tensor.stops[n]))),
      h("td", {}, holder(tensor, tensor.file_of[n])),
      h("td", {}, h("code", {}, tensor.files[tensor.file_of[n]])),
      h("td", { class: "num" }, place ? `${place[0].toLocaleString("en")}–${place[1].toLocaleString("en")}` : ""),
    );
  });
  const head = h("tr", {}, h("th", { scope: "col" }, "box"), h("th", { scope: "col" }, "holder"), h("th", { scope: "col" }, "file"), h("th", { scope: "col", class: "num" }, "bytes"));
  const more = tensor.box_count - LISTED;
  return h("details", {}, h("summary", {}, "All boxes as a table"), h("div", { class: "scroll low", tabindex: 0, role: "region", "aria-label": "Boxes" }, h("table", {}, h("thead", {}, head), h("tbody", {}, rows))), more > 0 && h("p", { class: "quiet" }, `and ${more.toLocaleString("en")} more`));
}
