// Which colour stands for a rank, and which for a value?
import { theme } from "./theme";

/** Ranks next to each other differ in hue; the lightness leaves text on them readable. */
export function rankColour(n: number): string {
  const hue = (205 + n * 137.508) % 360;
  if (theme() !== "dark") return `hsl(${hue} 58% 80%)`;
  // Green is bright to the eye, at the same lightness: light letters need it darker.
  const green = Math.max(0, Math.cos(((hue - 115) * Math.PI) / 180));
  return `hsl(${hue} 42% ${35 - 10 * green}%)`;
}

const COLD: [number, number, number] = [33, 102, 172];
const WARM: [number, number, number] = [178, 80, 24];

/** From blue by the page's own background to orange; -1 to 1. */
export function heat(value: number): [number, number, number] {
  const ground: [number, number, number] = theme() === "dark" ? [24, 28, 34] : [250, 250, 251];
  const end = value < 0 ? COLD : WARM;
  const part = Math.sqrt(Math.min(1, Math.abs(value)));
  return [0, 1, 2].map((n) => Math.round(ground[n] + (end[n] - ground[n]) * part)) as [number, number, number];
}

/** What is not a finite number is seen at once. */
export const ODD: [number, number, number] = [214, 31, 105];
