// Which checkpoint, and which tensor? Chosen in the same way in all views.
import type { Checkpoint } from "../answers";
import { get } from "../api";
import { type Catalogue, checkpoints } from "../catalogue";
import { choice, h } from "../dom";
import { matcher } from "../modules";

export function checkpointPicker(label: string, catalogue: Catalogue, at: string, change: (at: string) => void): HTMLElement {
  const known = checkpoints(catalogue);
  const options = known.map((one): [string, string] => [one.at, one.title]);
  if (!known.some((one) => one.at === at)) options.unshift([at, at || "none"]);
  return choice(label, options.reverse(), at, change);
}

const SUGGESTED = 50;
let number = 0;

/** A field for a tensor's name that suggests those that there are. */
export function tensorPicker(checkpoint: Checkpoint, key: string, change: (key: string) => void): HTMLElement {
  const { keys } = checkpoint.tensors;
  const id = `tensors-${++number}`;
  const list = h("datalist", { id });
  const input: HTMLInputElement = h("input", {
    type: "search",
    list: id,
    value: key,
    placeholder: "name of a tensor, / to search",
    spellcheck: "false",
    autocomplete: "off",
    input: () => suggest(),
    change: () => choose(),
    keydown: (event: KeyboardEvent) => event.key === "Enter" && choose(),
  });
  const all = new Set(keys);
  const suggest = (): void => {
    const fits = matcher(input.value);
    const found: HTMLOptionElement[] = [];
    for (const one of keys) {
      if (fits(one)) found.push(h("option", { value: one }));
      if (found.length === SUGGESTED) break;
    }
    list.replaceChildren(...found);
  };
  const choose = (): void => {
    const text = input.value.trim();
    if (text === key) return;
    if (all.has(text)) return change(text);
    const fits = matcher(text);
    const several = keys.filter(fits);
    if (text && several.length === 1) change(several[0]);
  };
  return h("label", { class: "field wide" }, h("span", {}, "tensor"), input, list);
}

const known = new Map<string, Promise<Checkpoint>>();

/** A checkpoint's page, asked for once. */
export function checkpointAt(at: string): Promise<Checkpoint> {
  let found = known.get(at);
  if (found === undefined) {
    found = get<Checkpoint>("checkpoint", { at });
    found.catch(() => known.delete(at));
    known.set(at, found);
    for (const old of [...known.keys()].slice(0, -4)) known.delete(old);
  }
  return found;
}
