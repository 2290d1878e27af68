// What is in the checkpoint? Bytes by module, every tensor, the files, and how the save went.
import type { Checkpoint } from "../answers";
import { card, facts, h, notice, replace } from "../dom";
import type { Shown } from "../main";
import { type Module, moduleAt, modulesOf } from "../modules";
import { go, here, note } from "../route";
import { treemap } from "../treemap";
import { KeyTree } from "../tree";
import { count, moment, num, size } from "../words";
import { checkpointAt, checkpointPicker } from "./pickers";
import { saveCards } from "./save_report";

export async function checkpointView({ catalogue, query }: Shown): Promise<HTMLElement> {
  if (!query.at) return notice("No checkpoint to show", "Nothing here is committed yet. A checkpoint appears as soon as a save has ended.");
  const found = await checkpointAt(query.at);
  const root = modulesOf(found.tensors);
  const picker = checkpointPicker("checkpoint", catalogue, query.at, (at) => go("checkpoint", { ...here().query, at }));
  const title = h("div", { class: "title" }, h("h1", {}, found.step === null ? "Checkpoint" : `Step ${found.step}`), picker);
  const page = h("div", { class: "page" }, title, overview(found));
  if (!found.tensors.keys.length) {
    page.append(notice("No tensors", "This checkpoint holds values only."));
    return page;
  }
  page.append(mapCard(found, root, query.module ?? ""));
  page.append(treeCard(found, root, query));
  page.append(h("div", { class: "columns" }, dtypeCard(found), fileCard(found)));
  page.append(...saveCards(found));
  if (found.values.length) page.append(valuesCard(found));
  return page;
}

function overview(found: Checkpoint): HTMLElement {
  const metrics = Object.entries(found.metrics).map(([name, value]) => `${name} ${num(value)}`);
  const pairs: [string, string | HTMLElement][] = [
    ["tensors", found.tensors.keys.length.toLocaleString("en")],
    ["size", size(found.nbytes)],
    ["files", `${found.files.names.length.toLocaleString("en")}, ${size(found.file_nbytes)}`],
    ["format", found.format],
  ];
  if (found.ranks !== null) pairs.push(["ranks", String(found.ranks)]);
  if (found.saved_at) pairs.push(["saved", moment(found.saved_at)]);
  if (metrics.length) pairs.push(["metrics", metrics.join(", ")]);
  for (const [name, value] of Object.entries(found.metadata)) pairs.push([name, value]);
  if (found.save_id) pairs.push(["save id", h("code", {}, found.save_id)]);
  pairs.push(["path", h("code", {}, found.path)]);
  return facts(pairs);
}

function mapCard(found: Checkpoint, root: Module, path: string): HTMLElement {
  const crumbs = h("nav", { class: "crumbs", "aria-label": "Module" });
  const holder = h("div");
  const show = (module: Module) => {
    note({ module: module.path || undefined });
    const names = module.path ? module.path.split(".") : [];
    replace(
      crumbs,
      [root, ...names.map((_, n) => moduleAt(root, names.slice(0, n + 1).join("."))!)].map((one, n) =>
        h("button", { type: "button", click: () => show(one), "aria-current": one === module ? "true" : undefined }, n ? one.name : "all"),
      ),
      h("span", { class: "quiet" }, `${size(module.nbytes)} in ${count(module.tensors, "tensor")}`),
    );
    replace(
      holder,
      treemap(module, (part) => (part.parts.size ? show(part) : go("tensor", { at: found.at, key: part.path }))),
    );
  };
  show(moduleAt(root, path) ?? root);
  return card("Bytes by module", crumbs, holder);
}

function treeCard(found: Checkpoint, root: Module, query: Record<string, string>): HTMLElement {
  const tree = new KeyTree(
    root,
    found.tensors,
    (key) => go("tensor", { at: found.at, key }),
    (text) => note({ q: text || undefined }),
  );
  if (query.q) tree.filter(query.q);
  if (query.focus === "search") setTimeout(() => tree.search.focus());
  return card("Tensors", h("span", { class: "quiet hint" }, "/ searches, arrows walk, Enter opens"), tree.element);
}

/** Names with sizes and bars. */
function bars(rows: [string, number, string][], total: number): HTMLElement {
  return h(
    "ul",
    { class: "bars" },
    rows.map(([name, nbytes, more]) =>
      h("li", {}, h("span", { class: "bar-name", title: name }, name), h("span", { class: "bar-size" }, size(nbytes)), h("span", { class: "bar-more quiet" }, more), h("span", { class: "bar-line" }, h("i", { style: { width: `${(100 * nbytes) / (total || 1)}%` } }))),
    ),
  );
}

function dtypeCard(found: Checkpoint): HTMLElement {
  const { dtypes, dtype, nbytes } = found.tensors;
  const sums = dtypes.map(() => [0, 0]);
  dtype.forEach((kind, n) => {
    sums[kind][0] += nbytes[n];
    sums[kind][1] += 1;
  });
  const rows = dtypes.map((name, n): [string, number, string] => [name, sums[n][0], count(sums[n][1], "tensor")]);
  return card("By dtype", null, bars(rows.sort((a, b) => b[1] - a[1]), found.nbytes));
}

const LISTED = 12;

function fileCard(found: Checkpoint): HTMLElement {
  const { names, nbytes, ranks } = found.files;
  const rows = names.map((name, n): [string, number, string] => [name, nbytes[n], ranks ? `rank ${ranks[n]}` : ""]);
  rows.sort((a, b) => b[1] - a[1]);
  const largest = rows[0]?.[1] ?? 0;
  const list = bars(rows.slice(0, LISTED), largest);
  const more = rows.length - LISTED;
  return card("By file", count(names.length, "file"), list, more > 0 && h("p", { class: "quiet" }, `and ${count(more, "smaller file")}`));
}

function valuesCard(found: Checkpoint): HTMLElement {
  const rows = found.values.map(([path, value]) => h("tr", {}, h("td", {}, h("code", {}, path)), h("td", {}, value)));
  return card("Values", count(found.values.length, "value"), h("div", { class: "scroll low", tabindex: 0, role: "region", "aria-label": "Values" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "path"), h("th", { scope: "col" }, "value"))), h("tbody", {}, rows))));
}

