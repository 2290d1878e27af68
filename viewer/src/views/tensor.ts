// What is one tensor like? Who holds which box, how its values are spread, and a slice of them.
import type { Checkpoint, Num, Tensor, Values } from "../answers";
import { canAnswer, get, isReport } from "../api";
import { histogram } from "../charts";
import { card, facts, h, notice, replace, toggle, waiting } from "../dom";
import { problem, type Shown } from "../main";
import { go, here, link } from "../route";
import { box, count, num, shape, size } from "../words";
import { heatCard } from "./heat_map";
import { checkpointAt, checkpointPicker, tensorPicker } from "./pickers";
import { tilingCard } from "./tiling";

export async function tensorView({ catalogue, query, signal }: Shown): Promise<HTMLElement> {
  if (!query.at) return notice("No checkpoint to show", "Nothing here is committed yet.");
  const checkpoint = await checkpointAt(query.at);
  const key = query.key || largest(checkpoint);
  const go_on = (changed: Record<string, string>) => go("tensor", { at: query.at, key, ...changed });
  const title = h(
    "div",
    { class: "title" },
    h("h1", {}, "Tensor"),
    tensorPicker(checkpoint, key, (chosen) => go_on({ key: chosen })),
    checkpointPicker("checkpoint", catalogue, query.at, (at) => go_on({ at })),
  );
  const page = h("div", { class: "page" }, title);
  if (!key) {
    page.append(notice("No tensors", "This checkpoint holds values only."));
    return page;
  }
  const tensor = await get<Tensor>("tensor", { at: query.at, key }, signal);
  page.append(overview(tensor, query.at), tilingCard(tensor));
  page.append(valuesCard(tensor, query.at, signal));
  page.append(heatCard(tensor, query, signal));
  return page;
}

function largest(checkpoint: Checkpoint): string {
  const { keys, nbytes } = checkpoint.tensors;
  let at = 0;
  nbytes.forEach((size, n) => {
    if (size > nbytes[at] && (!isReport || canAnswer("values", { at: checkpoint.at, key: keys[n] }))) at = n;
  });
  return keys[at] ?? "";
}

function overview(tensor: Tensor, at: string): HTMLElement {
  return facts([
    ["name", h("code", {}, tensor.key)],
    ["shape", shape(tensor.shape)],
    ["dtype", tensor.dtype],
    ["size", size(tensor.nbytes)],
    ["stored in", `${count(tensor.box_count, "box").replace("boxs", "boxes")}, ${count(tensor.files.length, "file")}`],
    ["see", h("a", { href: link("compare", { b: at, key: tensor.key, ...(here().query.run ? { run: here().query.run } : {}) }) }, "how it changed")],
  ]);
}

function valuesCard(tensor: Tensor, at: string, signal: AbortSignal): HTMLElement {
  const body = h("div");
  const load = async (whole: boolean) => {
    replace(body, waiting(`Reading ${size(tensor.nbytes)} at most …`));
    try {
      const asked: Record<string, string> = whole ? { at, key: tensor.key, whole: "1" } : { at, key: tensor.key };
      const found = await get<Values>("values", asked, signal);
      replace(body, values(tensor, found, () => void load(true)));
    } catch (error) {
      if (!signal.aborted) replace(body, problem(error));
    }
  };
  void load(false);
  return card("Values", null, body);
}

function values(tensor: Tensor, found: Values, whole: () => void): HTMLElement[] {
  const { stats } = found;
  const tile = (name: string, value: Num | null, bad = false) => h("div", { class: `tile${bad ? " bad" : ""}` }, h("span", {}, name), h("strong", {}, value === null ? "–" : num(value)));
  const parts: HTMLElement[] = [
    h(
      "div",
      { class: "tiles" },
      tile("min", stats.min),
      tile("max", stats.max),
      tile("mean", stats.mean),
      tile("std", stats.std),
      tile("NaN", stats.nan, stats.nan > 0),
      tile("Inf", stats.inf, stats.inf > 0),
    ),
  ];
  if (stats.nan || stats.inf) parts.push(odd(tensor, found));
  if (typeof stats.min === "number" && typeof stats.max === "number") {
    const [least, most] = [stats.min, stats.max];
    const holder = h("div");
    const draw = (isLog: boolean) => replace(holder, histogram([found.bins], least, most, isLog, [tensor.key]));
    draw(false);
    parts.push(h("div", { class: "row end" }, toggle("log counts", false, draw)), holder);
  } else {
    parts.push(notice("No finite values", tensor.shape.includes(0) ? "The tensor has no cells." : "Every value is NaN or infinite."));
  }
  if (!found.is_whole) {
    const said = h("p", { class: "quiet" }, `Of ${size(tensor.nbytes)}, ${size(found.read_nbytes)} spread evenly were read. `);
    if (!isReport) said.append(h("button", { type: "button", class: "small", click: whole }, "Read all of it"));
    parts.push(said);
  }
  return parts;
}

/** Where values are no numbers: boxes with counts, and the first cells. */
function odd(tensor: Tensor, found: Values): HTMLElement {
  const { boxes, box_count, cells } = found.odd;
  const near = (cell: number[]) => {
    const { query } = here();
    const around = (dim: number) => `${Math.max(0, cell[dim] - 16)}:${Math.min(tensor.shape[dim], cell[dim] + 16)}`;
    const rank = tensor.shape.length;
    return link("tensor", { ...query, key: tensor.key, index: cell.join(","), rows: rank > 1 ? around(rank - 2) : undefined, columns: rank ? around(rank - 1) : undefined });
  };
  return h(
    "div",
    { class: "notice error" },
    h("strong", {}, "Values that are not finite"),
    h(
      "ul",
      {},
      boxes.slice(0, 6).map((one) => h("li", {}, `${box(one.start, one.stop)}: ${one.nan} NaN, ${one.inf} Inf`)),
      box_count > 6 && h("li", {}, `and in ${box_count - 6} more`),
    ),
    h("p", {}, "First cells: ", cells.slice(0, 8).flatMap((cell) => [isReport ? h("code", {}, `[${cell.join(", ")}]`) : h("a", { href: near(cell) }, `[${cell.join(", ")}]`), " "])),
  );
}
