// Elements and numbers. Text that others chose becomes text, and nothing else: no markup is ever parsed.

export const find = (selector) => document.querySelector(selector);

/** Make an element with attributes, and with children that are elements or texts. */
export function make(name, attributes = {}, ...children) {
  const made = name === "path" || name === "line"
    ? document.createElementNS("http://www.w3.org/2000/svg", name)
    : document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  made.append(...children);
  return made;
}

/** Set a text, unless it is there already. */
export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const whole = new Intl.NumberFormat("en");
const exact = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
export const count = (value) => whole.format(Math.round(value));
export const rate = (value) => (value < 10 ? exact.format(Math.round(10 * value) / 10) : count(value));
export const share = (value) => `${count(100 * value)} %`;
export const bytes = (value) => (value < 1e9 ? `${count(value / 1e6)} MB` : `${exact.format(value / 1e9)} GB`);

export function seconds(value) {
  if (value < 60) return `${value.toFixed(1)} s`;
  const two = (number) => String(Math.floor(number)).padStart(2, "0");
  return value < 3600
    ? `${Math.floor(value / 60)}:${two(value % 60)} min`
    : `${Math.floor(value / 3600)}:${two((value % 3600) / 60)} h`;
}
