// Where do the bytes lie? Each part of a module is a rectangle as large as its bytes.
import { h, replace } from "./dom";
import { type Module, partsOf } from "./modules";
import { rankColour } from "./colours";
import { count, size } from "./words";

interface Rect {
  x: number;
  y: number;
  w: number;
  h: number;
}

/** Rectangles of these areas that fill a frame and are close to squares. */
export function squarify(areas: number[], frame: Rect): Rect[] {
  const total = areas.reduce((sum, area) => sum + area, 0) || 1;
  const scaled = areas.map((area) => (area * frame.w * frame.h) / total);
  const found: Rect[] = [];
  let rest = { ...frame };
  let at = 0;
  while (at < scaled.length) {
    const side = Math.min(rest.w, rest.h) || 1;
    let row = [scaled[at]];
    while (at + row.length < scaled.length) {
      const longer = [...row, scaled[at + row.length]];
      if (worst(longer, side) > worst(row, side)) break;
      row = longer;
    }
    const sum = row.reduce((a, b) => a + b, 0);
    const thick = sum / side;
    let along = 0;
    for (const area of row) {
      const length = thick ? area / thick : 0;
      found.push(
        rest.w >= rest.h
          ? { x: rest.x, y: rest.y + along, w: thick, h: length }
          : { x: rest.x + along, y: rest.y, w: length, h: thick },
      );
      along += length;
    }
    rest =
      rest.w >= rest.h
        ? { x: rest.x + thick, y: rest.y, w: rest.w - thick, h: rest.h }
        : { x: rest.x, y: rest.y + thick, w: rest.w, h: rest.h - thick };
    at += row.length;
  }
  return found;
}

function worst(row: number[], side: number): number {
  const sum = row.reduce((a, b) => a + b, 0);
  if (!sum) return Infinity;
  return Math.max(...row.map((area) => Math.max((side * side * area) / (sum * sum), (sum * sum) / (side * side * area || 1e-9))));
}

const MOST = 60;
const HEAD = 20;
// A part that is smaller than this shows no parts of its own.
const ROOM = 3600;

interface Area {
  label: string;
  name: string;
  nbytes: number;
  part: Module | null;
}

/** The largest parts, and what is left of them as one. */
function areasOf(module: Module, whole: number): Area[] {
  const parts = partsOf(module)
    .filter((part) => part.nbytes > 0)
    .sort((a, b) => b.nbytes - a.nbytes);
  const share = (nbytes: number) => `${((100 * nbytes) / (whole || 1)).toFixed(1)}%`;
  const found = parts.slice(0, MOST).map((part): Area => {
    const tensors = part.tensor < 0 ? `, ${count(part.tensors, "tensor")}` : "";
    return { part, name: part.name, nbytes: part.nbytes, label: `${part.path}, ${size(part.nbytes)}, ${share(part.nbytes)}${tensors}` };
  });
  const left = parts.slice(MOST).reduce((sum, part) => sum + part.nbytes, 0);
  const others = count(parts.length - MOST, "more part");
  if (left) found.push({ part: null, name: others, nbytes: left, label: `${others}, ${size(left)}, ${share(left)}` });
  return found;
}

/** The first module below that has several parts. */
function branching(module: Module): Module {
  let at = module;
  while (at.parts.size === 1) at = [...at.parts.values()][0];
  return at;
}

/** A map of a module's parts and theirs; `open` is told which one was chosen. */
export function treemap(module: Module, open: (part: Module) => void): HTMLElement {
  const element = h("div", { class: "treemap" });
  const cell = (area: Area, rect: Rect, colour: string, more = "") => {
    const room = rect.w > 44 && rect.h > 18;
    const place = more ? {} : { left: `${rect.x}px`, top: `${rect.y}px`, width: `${Math.max(1, rect.w - 2)}px`, height: `${Math.max(1, rect.h - 2)}px` };
    return h(
      "button",
      { class: `cell ${more}`, type: "button", title: area.label, "aria-label": area.label, disabled: !area.part, click: () => area.part && open(area.part), style: { ...place, background: colour } },
      room && h("span", {}, area.name),
      room && (rect.h > 36 || (more !== "" && rect.w > 160)) && h("small", {}, size(area.nbytes)),
    );
  };
  const draw = () => {
    const areas = areasOf(module, module.nbytes);
    const rects = squarify(areas.map((area) => area.nbytes), { x: 0, y: 0, w: element.clientWidth || 600, h: element.clientHeight || 260 });
    replace(element, rects.map((rect, n) => {
      const area = areas[n];
      const colour = rankColour(n);
      if (!area.part || branching(area.part).parts.size < 2 || rect.w * (rect.h - HEAD) < ROOM || rect.w < 60) return cell(area, rect, colour);
      const inner = areasOf(branching(area.part), module.nbytes);
      const frame = { x: 0, y: HEAD, w: rect.w - 2, h: rect.h - HEAD - 2 };
      const parts = squarify(inner.map((one) => one.nbytes), frame).map((one, at) => cell(inner[at], one, colour));
      const place = { left: `${rect.x}px`, top: `${rect.y}px`, width: `${rect.w - 2}px`, height: `${rect.h - 2}px` };
      return h("div", { class: "group", style: place }, cell(area, { ...rect, h: HEAD }, "transparent", "head"), parts);
    }));
  };
  new ResizeObserver(draw).observe(element);
  return element;
}
