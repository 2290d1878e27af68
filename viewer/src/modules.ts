// How do names make a tree? By their dots; each module knows its bytes and tensors.
import type { Tensors } from "./answers";

export interface Module {
  name: string;
  path: string;
  nbytes: number;
  tensors: number;
  parts: Map<string, Module>;
  /** The number of the tensor that has this very name; -1 for a module. */
  tensor: number;
}

function fresh(name: string, path: string): Module {
  return { name, path, nbytes: 0, tensors: 0, parts: new Map(), tensor: -1 };
}

export function modulesOf(tensors: Tensors): Module {
  const root = fresh("", "");
  tensors.keys.forEach((key, number) => {
    let at = root;
    const nbytes = tensors.nbytes[number];
    at.nbytes += nbytes;
    at.tensors += 1;
    let path = "";
    for (const name of key.split(".")) {
      path = path ? `${path}.${name}` : name;
      let next = at.parts.get(name);
      if (next === undefined) {
        next = fresh(name, path);
        at.parts.set(name, next);
      }
      next.nbytes += nbytes;
      next.tensors += 1;
      at = next;
    }
    at.tensor = number;
  });
  return root;
}

/** The module of a path; null if there is none. */
export function moduleAt(root: Module, path: string): Module | null {
  let at: Module | undefined = root;
  for (const name of path ? path.split(".") : []) {
    at = at?.parts.get(name);
  }
  return at ?? null;
}

/** The parts of a module, numbers in their order, others as they come. */
export function partsOf(module: Module): Module[] {
  const parts = [...module.parts.values()];
  return parts.every((part) => /^\d+$/.test(part.name)) ? parts.sort((a, b) => Number(a.name) - Number(b.name)) : parts;
}

/** Whether keys match what somebody typed: a part of the name, or a pattern with stars. */
export function matcher(text: string): (key: string) => boolean {
  const wanted = text.trim().toLowerCase();
  if (!wanted.includes("*")) return (key) => key.toLowerCase().includes(wanted);
  const escaped = wanted.split("*").map((part) => part.replace(/[.+?^${}()|[\]\\]/g, "\\$&"));
  const pattern = new RegExp(`^${escaped.join(".*")}$`);
  return (key) => pattern.test(key.toLowerCase());
}
