// Who was slow, and who wrote too much? Bytes and phases of each rank, side by side.
import type { Checkpoint, SaveReport } from "../answers";
import { card, choice, h } from "../dom";
import { VirtualList } from "../virtual";
import { count, seconds, size } from "../words";

const ORDER = ["stage", "plan", "write"];

export function saveCards(found: Checkpoint): HTMLElement[] {
  const { report } = found;
  if (!report || !report.ranks.length) return [];
  return [timeline(report)];
}

function median(numbers: number[]): number {
  return [...numbers].sort((a, b) => a - b)[Math.floor((numbers.length - 1) / 2)];
}

function phasesOf(report: SaveReport): string[] {
  const known = Object.keys(report.seconds);
  return [...ORDER.filter((name) => known.includes(name)), ...known.filter((name) => !ORDER.includes(name))];
}

function timeline(report: SaveReport): HTMLElement {
  const phases = phasesOf(report);
  const whole = report.ranks.map((_, n) => phases.reduce((sum, name) => sum + report.seconds[name][n], 0));
  // Who waits for others does so while it plans: a rank's own work is the rest.
  const own = phases.filter((name) => name !== "plan");
  const usual = Object.fromEntries(own.map((name) => [name, median(report.seconds[name])]));
  const slowIn = (n: number) => own.filter((name) => report.seconds[name][n] > 1.5 * usual[name] && report.seconds[name][n] - usual[name] > 0.05);
  const slowest = Math.max(...whole);
  const end = slowest + report.commit_seconds || 1;
  const most = Math.max(...report.nbytes, 1);
  const mean = report.nbytes.reduce((a, b) => a + b, 0) / report.nbytes.length;
  const list = new VirtualList("Ranks", "list", 30, 12);
  list.element.classList.add("ranks");
  const ownTime = (n: number) => own.reduce((sum, name) => sum + report.seconds[name][n], 0);
  const orders: Record<string, (a: number, b: number) => number> = {
    rank: (a, b) => a - b,
    slowest: (a, b) => ownTime(b) - ownTime(a),
    largest: (a, b) => report.nbytes[b] - report.nbytes[a],
  };
  const row = (n: number) => {
    const slow = slowIn(n);
    const parts = phases.map((name) => h("i", { class: `phase ${name}`, title: `${name} ${seconds(report.seconds[name][n])}`, style: { width: `${(100 * report.seconds[name][n]) / end}%` } }));
    const commit = report.ranks[n] === Math.min(...report.ranks) && h("i", { class: "phase commit", title: `commit ${seconds(report.commit_seconds)}`, style: { left: `${(100 * slowest) / end}%`, width: `${(100 * report.commit_seconds) / end}%` } });
    const says = `rank ${report.ranks[n]} on ${report.hosts[report.host_of[n]]}: ${phases.map((name) => `${name} ${seconds(report.seconds[name][n])}`).join(", ")}; ${size(report.nbytes[n])}${slow.length ? `; slow to ${slow.join(" and ")}` : ""}`;
    return h(
      "div",
      { class: `rank-row${slow.length ? " slow" : ""}`, role: "listitem", title: says, "aria-label": says },
      h("span", { class: "rank-name" }, `${report.ranks[n]}`),
      h("span", { class: "rank-times" }, parts, commit),
      h("span", { class: "rank-total" }, slow.length ? `slow ${slow.join(", ")}` : seconds(whole[n])),
      h("span", { class: "rank-bytes" }, h("i", { style: { width: `${(100 * report.nbytes[n]) / most}%` } })),
      h("span", { class: "rank-size" }, size(report.nbytes[n])),
    );
  };
  const show = (order: string) => {
    const numbers = report.ranks.map((_, n) => n).sort(orders[order]);
    list.show({ count: numbers.length, row: (index) => row(numbers[index]) });
  };
  show("rank");
  const key = [...phases, "commit"].map((name) => h("span", { class: "key" }, h("i", { class: `phase ${name}` }), name));
  const sort = choice("order", [["rank", "by rank"], ["slowest", "slowest first"], ["largest", "most bytes first"]], "rank", show);
  const late = report.ranks.filter((_, n) => slowIn(n).length > 0);
  const told = late.length ? `Slow: rank ${late.slice(0, 8).join(", ")}${late.length > 8 ? ` and ${late.length - 8} more` : ""}.` : "No rank is slow.";
  const summary = `${told} The save took ${seconds(end)}. Most bytes ${(most / (mean || 1)).toFixed(2)} × the mean. ${count(report.ranks.length, "rank")} on ${count(report.hosts.length, "host")}.`;
  return card(
    "The save, rank by rank",
    sort,
    h("p", {}, summary, " ", h("span", { class: "quiet" }, "Phases are laid end to end; who waits for others, waits in plan.")),
    h("div", { class: "keys" }, key),
    h("div", { class: "rank-row rank-head", "aria-hidden": "true" }, h("span", {}, "rank"), h("span", {}, "time"), h("span", {}, ""), h("span", {}, "bytes"), h("span", {}, "")),
    list.element,
  );
}
