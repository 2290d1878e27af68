// How has one tensor changed? Its values in both checkpoints over each other, and over the run.
import type { Drift, Num, Spread, Stats } from "../answers";
import { get } from "../api";
import { type Axis, histogram, lines } from "../charts";
import { card, h, notice, replace, toggle, waiting } from "../dom";
import { problem } from "../main";
import { link } from "../route";
import { drawable, num } from "../words";

export interface Pair {
  a: string;
  b: string;
  key: string;
  run: string | null;
  titles: [string, string];
}

export function tensorCards(pair: Pair, signal: AbortSignal): HTMLElement[] {
  const spread = h("div", {}, waiting("Reading both …"));
  get<Spread>("spread", { a: pair.a, b: pair.b, key: pair.key }, signal).then(
    (found) => replace(spread, spreadParts(found, pair)),
    (error) => signal.aborted || replace(spread, problem(error)),
  );
  const name = h("a", { href: link("tensor", { at: pair.b, key: pair.key }) }, h("code", {}, pair.key));
  const cards = [card("Distributions", name, spread)];
  if (pair.run !== null) cards.push(driftCard(pair, pair.run, signal));
  return cards;
}

function spreadParts(found: Spread, { titles }: Pair): HTMLElement[] {
  const parts: HTMLElement[] = [];
  if (typeof found.least === "number" && typeof found.most === "number") {
    const [least, most] = [found.least, found.most];
    const holder = h("div");
    const draw = (isLog: boolean) => replace(holder, histogram(found.bins, least, most, isLog, titles));
    draw(false);
    const keys = h("div", { class: "keys" }, h("span", { class: "key" }, h("i", { class: "bar-key" }), titles[0]), h("span", { class: "key" }, h("i", { class: "line-key" }), titles[1]));
    parts.push(h("div", { class: "row" }, keys, toggle("log counts", false, draw)), holder);
  } else {
    parts.push(notice("No finite values", "There is nothing to draw."));
  }
  parts.push(h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Statistics of both" }, statsTable(found.stats, titles)));
  if (!found.is_whole) parts.push(h("p", { class: "quiet" }, "Of large tensors, parts spread evenly were read."));
  return parts;
}

function statsTable(both: Stats[], titles: string[]): HTMLElement {
  const names: (keyof Stats)[] = ["min", "max", "mean", "std", "nan", "inf"];
  const cell = (value: Num | null) => h("td", { class: "num" }, num(value));
  return h(
    "table",
    {},
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, ""), names.map((name) => h("th", { scope: "col", class: "num" }, name)))),
    h("tbody", {}, both.map((stats, n) => h("tr", {}, h("th", { scope: "row" }, titles[n]), names.map((name) => cell(stats[name]))))),
  );
}

function driftCard(pair: Pair, run: string, signal: AbortSignal): HTMLElement {
  const body = h("div", {}, waiting("Reading it in every checkpoint …"));
  get<Drift>("drift", { run, key: pair.key }, signal).then(
    (found) => replace(body, driftParts(found)),
    (error) => signal.aborted || replace(body, problem(error)),
  );
  return card("Drift over the run", h("code", {}, pair.key), body);
}

function driftParts(found: Drift): HTMLElement[] {
  if (found.steps.length < 2) return [notice("Nothing to draw yet", "A drift takes two checkpoints.")];
  const axis: Axis = { label: "step", values: found.steps.map((one) => one.step), isTime: false };
  const line = (label: string, pick: (one: Drift["steps"][number]) => Num | null) => ({ label, values: found.steps.map((one) => drawable(pick(one))) });
  const parts: HTMLElement[] = [
    h(
      "div",
      { class: "charts" },
      lines("distance from the first step, from the one before", axis, [{ ...line("first", (one) => one.from_first), fromZero: true }, line("before", (one) => one.from_last)], "drift"),
      lines("standard deviation", axis, [line("std", (one) => one.std)], "drift"),
      lines("mean", axis, [line("mean", (one) => one.mean)], "drift"),
    ),
  ];
  if (found.sampled) parts.push(h("p", { class: "quiet" }, "Of large tensors, the same parts of each checkpoint were read."));
  if (found.left_out.length) parts.push(h("p", { class: "quiet" }, `Left out: ${found.left_out.join("; ")}`));
  return parts;
}
