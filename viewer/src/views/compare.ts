// What changed from one checkpoint to the other? By module and by tensor, largest first.
import type { Changes, Checkpoint, Num } from "../answers";
import { answered, canAnswer, get, isReport } from "../api";
import { type Catalogue, checkpoints, titleOf, wholeOnes } from "../catalogue";
import { card, choice, facts, h, notice, replace, waiting } from "../dom";
import { problem, type Shown } from "../main";
import { go, here, note } from "../route";
import { matcher } from "../modules";
import { VirtualList } from "../virtual";
import { count, num, percent, size } from "../words";
import { checkpointAt, checkpointPicker } from "./pickers";
import { tensorCards } from "./compare_tensor";

// More than this is read only when somebody says so.
const ASK_NBYTES = 2 * 2 ** 30;

export async function compareView({ catalogue, query, signal }: Shown): Promise<HTMLElement> {
  const known = isReport ? answered("compare").map((pair) => [pair.a, pair.b]) : [];
  const all = checkpoints(catalogue).map((one) => one.at);
  const b = query.b || (isReport ? (known[0]?.[1] ?? "") : query.at);
  const a = query.a || (isReport ? (known[0]?.[0] ?? "") : before(catalogue, b));
  const page = h("div", { class: "page" });
  const title = h("div", { class: "title" }, h("h1", {}, "Compare"));
  page.append(title);
  if (!a || !b || a === b) {
    if (all.length) title.append(...pickers(catalogue, a, b));
    page.append(notice("Two checkpoints are needed", all.length < 2 ? "There is only one so far. Name several when you start the viewer: `shardkeep serve A B`." : "Choose two different ones."));
    return page;
  }
  title.append(...(isReport ? [pairPicker(catalogue, known, a, b)] : pickers(catalogue, a, b)));
  const [one, other] = await Promise.all([checkpointAt(a), checkpointAt(b)]);
  const body = h("div", { class: "stack" });
  page.append(body);
  const detail = h("div", { class: "stack", id: "detail" });
  const run = checkpoints(catalogue).find((each) => each.at === b)?.run ?? null;
  const open = (key: string) => {
    note({ a, b, key });
    replace(detail, tensorCards({ a, b, key, run, titles: [titleOf(catalogue, a), titleOf(catalogue, b)] }, signal));
  };
  const start = async () => {
    replace(body, waiting(`Reading ${size(one.nbytes + other.nbytes)} …`));
    try {
      const found = await get<Changes>("compare", { a, b }, signal);
      const first = query.key || found.keys[0] || "";
      replace(body, results(found, one, first, open), detail);
      if (first && (!isReport || query.key || canAnswer("spread", { a, b, key: first }))) open(first);
    } catch (error) {
      if (!signal.aborted) replace(body, problem(error));
    }
  };
  if (one.nbytes + other.nbytes > ASK_NBYTES && !isReport) {
    const button = h("button", { type: "button", class: "primary", click: () => void start() }, `Compare, reading ${size(one.nbytes + other.nbytes)}`);
    replace(body, notice("These are large", button));
    if (query.key) body.append(detail), open(query.key);
  } else {
    void start();
  }
  return page;
}

/** The checkpoint before, or the first other one. */
function before(catalogue: Catalogue, b: string): string {
  const all = wholeOnes(catalogue).map((one) => one.at);
  return all[all.indexOf(b) - 1] ?? all.find((at) => at !== b) ?? "";
}

function pickers(catalogue: Catalogue, a: string, b: string): HTMLElement[] {
  const set = (changed: Record<string, string>) => go("compare", { ...here().query, a, b, ...changed });
  return [
    checkpointPicker("from", catalogue, a, (at) => set({ a: at })),
    h("button", { type: "button", class: "icon", title: "Swap", "aria-label": "Swap the two", click: () => set({ a: b, b: a }) }, "⇄"),
    checkpointPicker("to", catalogue, b, (at) => set({ b: at })),
  ];
}

function pairPicker(catalogue: Catalogue, known: string[][], a: string, b: string): HTMLElement {
  const options = known.map((pair): [string, string] => [pair.join(" "), pair.map((at) => titleOf(catalogue, at)).join(" → ")]);
  return choice("from, to", options, `${a} ${b}`, (value) => go("compare", { a: value.split(" ")[0], b: value.split(" ")[1] }));
}

function results(found: Changes, one: Checkpoint, chosen: string, open: (key: string) => void): HTMLElement[] {
  const parts: HTMLElement[] = [
    facts([
      ["changed", count(found.keys.length, "tensor")],
      ["equal", count(found.equal, "tensor")],
      ["only in the first", String(found.only_a.length)],
      ["only in the second", String(found.only_b.length)],
      ["other shape or dtype", String(found.other_kind.length)],
    ]),
  ];
  const names = [
    ...found.only_a.map((key) => `only in the first: ${key}`),
    ...found.only_b.map((key) => `only in the second: ${key}`),
    ...found.other_kind,
  ];
  if (names.length) parts.push(h("details", { class: "card" }, h("summary", {}, `${count(names.length, "name")} not in both, or of another kind`), h("ul", { class: "names" }, names.slice(0, 500).map((name) => h("li", {}, h("code", {}, name))), names.length > 500 && h("li", {}, `and ${names.length - 500} more`))));
  if (!found.keys.length) {
    parts.push(notice("No value differs", `${count(found.equal, "tensor")} of ${count(one.tensors.keys.length, "tensor")} are equal to the last bit.`));
    return parts;
  }
  parts.push(h("div", { class: "columns" }, moduleCard(found), tensorList(found, chosen, open)));
  return parts;
}

interface Group {
  name: string;
  most: number;
  relative: number;
  tensors: number;
  changed: number;
  count: number;
}

/** Inf goes by its name in JSON. */
function value(n: Num): number {
  return typeof n === "number" ? n : Number.POSITIVE_INFINITY;
}

function groups(found: Changes, depth: number): Group[] {
  const known = new Map<string, Group>();
  found.keys.forEach((key, n) => {
    const name = key.split(".").slice(0, depth).join(".");
    const group = known.get(name) ?? { name, most: 0, relative: 0, tensors: 0, changed: 0, count: 0 };
    group.most = Math.max(group.most, value(found.most[n]));
    group.relative = Math.max(group.relative, value(found.relative[n]));
    group.tensors += 1;
    group.changed += found.changed[n];
    group.count += found.count[n];
    known.set(name, group);
  });
  return [...known.values()].sort((x, y) => y.most - x.most);
}

function moduleCard(found: Changes): HTMLElement {
  const holder = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Changes by module" });
  const show = (depth: number) => {
    const rows = groups(found, depth);
    replace(
      holder,
      h(
        "table",
        {},
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "module"), ["tensors", "largest", "cells"].map((name) => h("th", { scope: "col", class: "num" }, name)))),
        h("tbody", {}, rows.slice(0, 200).map((one) => h("tr", {}, h("td", {}, h("code", {}, one.name)), h("td", { class: "num" }, one.tensors), h("td", { class: "num" }, num(Number.isFinite(one.most) ? one.most : "inf")), h("td", { class: "num" }, percent(one.changed / (one.count || 1)))))),
      ),
    );
  };
  show(3);
  return card("By module", choice("depth", ["1", "2", "3", "4", "5"].map((n): [string, string] => [n, n]), "3", (n) => show(Number(n))), holder);
}

function tensorList(found: Changes, chosen: string, open: (key: string) => void): HTMLElement {
  const list = new VirtualList("Changed tensors", "listbox");
  let order = found.keys.map((_, n) => n);
  let active = found.keys.indexOf(chosen);
  const row = (index: number) => {
    const n = order[index];
    return h(
      "div",
      { class: `change-row${index === active ? " chosen" : ""}`, id: `change-${index}`, role: "option", "aria-selected": String(index === active), click: () => choose(index) },
      h("span", { class: "tree-name", title: found.keys[n] }, found.keys[n]),
      h("span", {}, num(found.most[n])),
      h("span", {}, num(found.relative[n])),
      h("span", {}, percent(found.changed[n] / (found.count[n] || 1))),
    );
  };
  const draw = () => list.show({ count: order.length, row });
  const choose = (index: number) => {
    active = index;
    draw();
    list.element.setAttribute("aria-activedescendant", `change-${index}`);
    open(found.keys[order[index]]);
  };
  const sorts: Record<string, (x: number, y: number) => number> = {
    largest: (x, y) => value(found.most[y]) - value(found.most[x]),
    relative: (x, y) => value(found.relative[y]) - value(found.relative[x]),
    cells: (x, y) => found.changed[y] / found.count[y] - found.changed[x] / found.count[x],
    name: (x, y) => (found.keys[x] < found.keys[y] ? -1 : 1),
  };
  let by = "largest";
  const arrange = () => {
    const fits = matcher(search.value);
    order = found.keys.map((_, n) => n).filter((n) => fits(found.keys[n])).sort(sorts[by]);
    active = -1;
    list.element.scrollTop = 0;
    draw();
  };
  const search = h("input", { type: "search", placeholder: "search", "aria-label": "Search changed tensors", input: arrange });
  list.element.addEventListener("keydown", (event) => {
    const moves: Record<string, number> = { ArrowDown: active + 1, ArrowUp: active - 1, Home: 0, End: order.length - 1 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    choose(Math.max(0, Math.min(order.length - 1, moves[event.key])));
    list.reveal(active);
  });
  draw();
  if (active > 0) setTimeout(() => list.reveal(active));
  const sort = choice("order", [["largest", "largest change"], ["relative", "relative change"], ["cells", "cells changed"], ["name", "name"]], by, (chosen) => ((by = chosen), arrange()));
  const head = h("div", { class: "change-row change-head", "aria-hidden": "true" }, h("span", {}, "tensor"), h("span", {}, "largest"), h("span", {}, "relative"), h("span", {}, "cells"));
  return card("By tensor", sort, search, head, list.element);
}
