// Light or dark? As the system says, until somebody says otherwise.
import { h } from "./dom";

type Theme = "light" | "dark";
const NAME = "shardkeep-theme";

function system(): Theme {
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

function stored(): Theme | null {
  try {
    const found = localStorage.getItem(NAME);
    return found === "light" || found === "dark" ? found : null;
  } catch {
    return null;
  }
}

export function theme(): Theme {
  return stored() ?? system();
}

function apply(): void {
  document.documentElement.dataset.theme = theme();
  window.dispatchEvent(new Event("themechange"));
}

/** The colour of a style sheet's variable. */
export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

export function themeButton(): HTMLButtonElement {
  const button = h("button", { class: "icon", type: "button", id: "theme" });
  const show = () => {
    const next = theme() === "dark" ? "light" : "dark";
    button.textContent = next === "dark" ? "☾" : "☀";
    button.title = `Show in ${next} colours`;
    button.setAttribute("aria-label", button.title);
  };
  button.addEventListener("click", () => {
    try {
      localStorage.setItem(NAME, theme() === "dark" ? "light" : "dark");
    } catch {
      // Without storage the choice cannot be kept; the system's stays.
    }
    apply();
    show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    apply();
    show();
  });
  apply();
  show();
  return button;
}
