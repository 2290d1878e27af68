// What would a load cost on another mesh? Who reads which bytes of which file.
import type { Reader, WhatIf } from "../answers";
import { answered, get, isReport } from "../api";
import { card, choice, facts, h, notice, replace, waiting } from "../dom";
import { problem, type Shown } from "../main";
import { go, here, note } from "../route";
import { count, overRead, size } from "../words";
import { checkpointPicker } from "./pickers";

const AXES: [string, string, string][] = [
  ["dp", "data parallel (fully sharded)", "cuts dim 0 of every tensor"],
  ["tp", "tensor parallel", "cuts dim 0 of matrices"],
  ["pp", "pipeline", "deals out layers"],
];

export async function whatIfView({ catalogue, query, signal }: Shown): Promise<HTMLElement> {
  if (!query.at) return notice("No checkpoint to load", "Nothing here is committed yet.");
  const mesh = query.mesh || (isReport ? (answered("what-if")[0]?.mesh ?? "dp=2") : "dp=4,tp=2");
  const set = (changed: Record<string, string | undefined>) => go("what-if", { ...here().query, at: query.at, mesh, ...changed } as Record<string, string>);
  const title = h("div", { class: "title" }, h("h1", {}, "What if"), checkpointPicker("load", catalogue, query.at, (at) => set({ at })));
  const body = h("div", { class: "stack" });
  const page = h("div", { class: "page" }, title, card("On this mesh", null, meshForm(mesh, query, set)), body);
  replace(body, waiting("Planning …"));
  const asked: Record<string, string> = { at: query.at, mesh };
  if (query.shard) asked.shard = query.shard;
  if (query.part) asked.key = query.part;
  get<WhatIf>("what-if", asked, signal).then(
    (found) => replace(body, results(found, query.reader)),
    (error) => signal.aborted || replace(body, problem(error)),
  );
  return page;
}

function sizes(mesh: string): Record<string, number> {
  return Object.fromEntries(mesh.split(",").map((part) => [part.split("=")[0], Number(part.split("=")[1]) || 1]));
}

function meshForm(mesh: string, query: Record<string, string>, set: (changed: Record<string, string | undefined>) => void): HTMLElement {
  if (isReport) {
    const meshes = [...new Set(answered("what-if").filter((one) => one.at === query.at).map((one) => one.mesh))];
    return choice("mesh", meshes.map((one): [string, string] => [one, one.replaceAll(",", " × ").replaceAll("=", " ")]), mesh, (value) => set({ mesh: value }));
  }
  const now = sizes(mesh);
  const inputs = AXES.map(([name, long, does]) => {
    const input = h("input", { type: "number", min: 1, max: 65536, value: now[name] ?? 1, name, title: does, change: () => apply() });
    return { name, input, label: h("label", { class: "field" }, h("span", {}, `${name}, ${long}`), input) };
  });
  const others = Object.keys(now).filter((name) => !AXES.some(([axis]) => axis === name));
  const apply = () => {
    const parts = inputs.filter(({ input }) => Number(input.value) > 1).map(({ name, input }) => `${name}=${Math.floor(Number(input.value))}`);
    parts.push(...others.map((name) => `${name}=${now[name]}`));
    set({ mesh: parts.join(",") || "dp=1", reader: undefined });
  };
  const text = (label: string, name: string, placeholder: string) => {
    const input = h("input", { type: "text", value: query[name] ?? "", placeholder, spellcheck: "false", change: () => set({ [name]: input.value.trim() || undefined }) });
    return h("label", { class: "field wide" }, h("span", {}, label), input);
  };
  return h(
    "div",
    { class: "row" },
    inputs.map((one) => one.label),
    text("rules of your own, AXIS:DIM or AXIS:DIM:PATTERN", "shard", "tp:1:*.down.weight"),
    text("only these tensors", "part", "model.*"),
  );
}

function results(found: WhatIf, chosen: string | undefined): HTMLElement[] {
  const { total, readers } = found;
  const axes = Object.entries(found.mesh).map(([name, n]) => `${name} ${n}`).join(" × ");
  const most = (name: "nbytes_read" | "peak_nbytes" | "requests") => Math.max(0, ...readers.map((one) => one[name]));
  const about = found.is_sample ? "about " : "";
  const parts = [
    facts([
      ["ranks", `${found.ranks.toLocaleString("en")} (${axes})`],
      ["wanted", about + size(total.nbytes_wanted)],
      ["read", about + size(total.nbytes_read)],
      ["over-read", overRead(total.nbytes_wanted, total.nbytes_read)],
      ["requests", about + total.requests.toLocaleString("en")],
      ["most a rank reads", size(most("nbytes_read"))],
      ["peak memory of a rank", size(most("peak_nbytes"))],
    ]),
  ];
  const detail = h("div");
  const open = (reader: Reader) => {
    note({ reader: reader.ranks });
    replace(detail, rangesCard(found, reader));
  };
  parts.push(matrixCard(found, open), detail);
  const first = readers.find((one) => one.ranks === chosen) ?? readers[0];
  if (first) open(first);
  return parts;
}

const FILES = 24;

/** Ranks down, files across: the fuller a cell, the more of the file is read. */
function matrixCard(found: WhatIf, open: (reader: Reader) => void): HTMLElement {
  const used = [...new Set(found.readers.flatMap((one) => one.reads.map((read) => read.file)))].sort((a, b) => a - b);
  const shown = used.slice(0, FILES);
  const head = h(
    "tr",
    {},
    ["ranks", "wants", "reads", "over-read", "requests", "peak memory"].map((name, n) => h("th", { scope: "col", class: n ? "num" : "" }, name)),
    shown.map((file, n) => h("th", { scope: "col", class: "mid", title: found.file_names[file] }, `file ${n}`)),
  );
  const rows = found.readers.map((one) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, h("button", { type: "button", class: "plain", click: () => open(one) }, `${one.count > 1 ? "each of " : ""}${one.ranks}`)),
      [size(one.nbytes_wanted), size(one.nbytes_read), overRead(one.nbytes_wanted, one.nbytes_read), one.requests.toLocaleString("en"), size(one.peak_nbytes)].map((text) => h("td", { class: "num" }, text)),
      shown.map((file) => {
        const read = one.reads.find((each) => each.file === file);
        const part = read ? Math.min(1, read.nbytes / (found.file_nbytes[file] || 1)) : 0;
        const says = read ? `${size(read.nbytes)} of ${size(found.file_nbytes[file])} in ${count(read.requests, "request")}` : "not read";
        return h("td", { class: "fill", title: says, "aria-label": says }, part > 0 && h("i", { style: { width: `${100 * part}%` } }));
      }),
    ),
  );
  const notes = [
    found.is_sample && `${found.readers.length} of ${found.distinct.toLocaleString("en")} different ranks were planned, spread evenly.`,
    used.length > FILES && `${count(used.length - FILES, "more file")} not shown.`,
    `Peak memory: the tensors, and scratch for ${count(found.threads, "thread")}.`,
  ].filter(Boolean);
  return card(
    "Who reads what",
    "a bar is the part of a file that is read",
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Ranks and files" }, h("table", { class: "matrix" }, h("thead", {}, head), h("tbody", {}, rows))),
    h("p", { class: "quiet" }, notes.join(" ")),
  );
}

/** Each file that a rank reads, with the ranges drawn at their places. */
function rangesCard(found: WhatIf, reader: Reader): HTMLElement {
  const reads = [...reader.reads].sort((a, b) => b.nbytes - a.nbytes).slice(0, 40);
  const rows = reads.map((read) => {
    const whole = found.file_nbytes[read.file] || 1;
    const marks = read.ranges.map(([start, stop]) => h("i", { title: `bytes ${start.toLocaleString("en")} to ${stop.toLocaleString("en")}`, style: { left: `${(100 * start) / whole}%`, width: `max(1px, ${(100 * (stop - start)) / whole}%)` } }));
    const few = read.ranges.slice(0, 3).map(([start, stop]) => `${start.toLocaleString("en")}–${stop.toLocaleString("en")}`);
    const more = read.range_count > 3 ? ` and ${(read.range_count - 3).toLocaleString("en")} more` : "";
    return h(
      "li",
      {},
      h("div", { class: "range-head" }, h("code", {}, found.file_names[read.file]), h("span", { class: "quiet" }, `${size(read.nbytes)} of ${size(whole)}, ${count(read.requests, "request")}`)),
      h("div", { class: "ranges", role: "img", "aria-label": `ranges of ${found.file_names[read.file]}` }, marks),
      h("small", { class: "quiet" }, `bytes ${few.join(", ")}${more}`),
    );
  });
  const left = reader.reads.length - reads.length;
  return card(`What rank ${reader.ranks} reads`.replace("rank", reader.count > 1 ? "each of ranks" : "rank"), `${size(reader.nbytes_read)} from ${count(reader.files, "file")}`, h("ul", { class: "range-list" }, rows), left > 0 && h("p", { class: "quiet" }, `and ${count(left, "more file")}`));
}
