// The last minutes, drawn: what is made, what waits, what is held.

import { bytes, count, find, make, rate, seconds, share, write } from "./elements.js";

const SHORTEST = 60; // seconds that are drawn, at least and at most
const LONGEST = 300;
const GAP = 5; // without a sample for so long, nothing is drawn
const WIDTH = 300;
const HEIGHT = 64;
const TONES = ["first", "second", "third", "fourth"];

/** The least of 1, 2 and 5 times a power of ten that is not below a value. */
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((digit) => digit * power).find((bound) => bound >= value);
}

/** Runs of samples, as places, that are not too far apart. */
function pieces(samples) {
  const found = [];
  samples.forEach(({ at }, index) => {
    if (index && at - samples[index - 1].at < GAP) found.at(-1).push(index);
    else found.push([index]);
  });
  return found;
}

class Graph {
  constructor(id, { stacked = false } = {}) {
    this.root = find(id);
    this.caption = this.root.querySelector("figcaption");
    this.title = this.caption.textContent;
    this.span = make("span", { class: "span" });
    this.caption.append(this.span);
    this.scale = make("span", { class: "scale", "aria-hidden": "true" });
    this.root.append(this.scale);
    this.svg = this.root.querySelector("svg");
    this.legend = this.root.querySelector(".legend");
    this.stacked = stacked;
    this.curves = [];
    for (const share of [0, 0.5, 1]) {
      const y = HEIGHT * share;
      this.svg.append(make("line", { class: "grid", x1: 0, x2: WIDTH, y1: y, y2: y }));
    }
  }

  /**
   * Draw, and say in words what is drawn.
   * samples: each with `at` and `values`; value: the figure; parts: texts of the legend, one for each curve and
   * perhaps more; top: upper end of the scale, or nothing for what fits; unit: writes a value.
   */
  draw(samples, { value, parts, top, unit }) {
    const now = samples.at(-1).at;
    const span = Math.min(LONGEST, Math.max(SHORTEST, now - samples[0].at));
    const heights = samples.map(({ values }) => {
      let below = 0;
      return values.map((each) => (this.stacked ? (below += each) : each));
    });
    const highest = Math.max(...heights.flat());
    const scale = top || roundUp(Math.max(1.05 * highest, 1));
    for (const place of samples.at(-1).values.keys()) this.trace(samples, heights, { place, now, span, scale });
    write(this.root.querySelector(".figure"), value);
    write(this.scale, unit(scale));
    this.say(parts);
    const last = span < 90 ? "last minute" : `last ${Math.round(span / 60)} minutes`;
    write(this.span, last);
    const name = `${this.title}, ${last}: ${value} now, at most ${unit(highest)}`;
    if (this.svg.getAttribute("aria-label") !== name) this.svg.setAttribute("aria-label", name);
  }

  trace(samples, heights, { place, now, span, scale }) {
    const spot = (index, value) => {
      const x = WIDTH * (1 - (now - samples[index].at) / span);
      const y = HEIGHT * (1 - Math.min(1, value / scale));
      return `${x.toFixed(1)} ${y.toFixed(1)}`;
    };
    const lines = [];
    const areas = [];
    for (const piece of pieces(samples)) {
      const upper = piece.map((index) => spot(index, heights[index][place] ?? 0));
      const lower = piece.map((index) => spot(index, this.stacked && place ? heights[index][place - 1] ?? 0 : 0));
      lines.push(`M${upper.join("L")}`);
      areas.push(`M${[...upper, ...lower.reverse()].join("L")}Z`);
    }
    this.curves[place] ??= this.curve(place);
    this.curves[place].line.setAttribute("d", lines.join(""));
    this.curves[place].area.setAttribute("d", areas.join(""));
  }

  curve(place) {
    const tone = TONES[place % TONES.length];
    const area = make("path", { class: `area ${tone}${this.stacked ? " solid" : ""}` });
    const line = make("path", { class: `curve ${tone}` });
    this.svg.append(area, line);
    return { area, line };
  }

  say(parts) {
    while (this.legend.children.length < parts.length) {
      const tone = TONES[this.legend.children.length] ?? "plain";
      this.legend.append(make("li", { class: tone }));
    }
    while (this.legend.children.length > parts.length) this.legend.lastChild.remove();
    parts.forEach(({ text, plain }, index) => {
      this.legend.children[index].classList.toggle("plain", Boolean(plain));
      write(this.legend.children[index], text);
    });
  }
}

const rank = ({ role }) => ["front", "scheduler", role].indexOf(role);

/** All graphs of one engine. */
export class Graphs {
  constructor() {
    this.samples = [];
    this.tokens = new Graph("#tokens");
    this.queue = new Graph("#queue");
    this.cache = new Graph("#cache", { stacked: true });
    this.memory = new Graph("#memory", { stacked: true });
  }

  add(activity) {
    const { statistics: now, work } = activity;
    const processes = [...activity.processes].sort((one, other) => rank(one) - rank(other));
    if (this.samples.length && this.samples.at(-1).at >= activity.clock_s) this.samples = []; // another server
    const last = this.samples.at(-1);
    // A scheduler that was started anew counts from 0.
    const made = (name) => {
      if (!last) return 0;
      const before = last.work[name] <= work[name] ? last.work[name] : 0;
      return (work[name] - before) / (activity.clock_s - last.at);
    };
    this.samples.push({
      at: activity.clock_s,
      work,
      tokens: [made("output_tokens"), made("prompt_tokens")],
      queue: [now.running, now.waiting],
      cache: [now.ledgers.blocks, now.blocks_cached],
      memory: processes.map((process) => process.rss_bytes),
    });
    while (this.samples[0].at < activity.clock_s - LONGEST) this.samples.shift();
    this.draw({ ...activity, processes });
  }

  of(name) {
    return this.samples.map((sample) => ({ at: sample.at, values: sample[name] }));
  }

  draw({ statistics: now, work, processes, block_tokens: size }) {
    const { tokens, memory } = this.samples.at(-1);
    this.tokens.draw(this.of("tokens"), {
      value: rate(tokens[0]),
      parts: [{ text: `made ${rate(tokens[0])}` }, { text: `of prompts ${rate(tokens[1])}` }],
      unit: rate,
    });
    const age = now.waiting ? [{ text: `the oldest ${seconds(now.health.queue_age_s)}`, plain: true }] : [];
    this.queue.draw(this.of("queue"), {
      value: count(now.running + now.waiting),
      parts: [
        { text: `running ${count(now.running)} of ${count(now.max_running)}` },
        { text: `waiting ${count(now.waiting)}` },
        ...age,
      ],
      unit: count,
    });
    const hits = work.begun_tokens ? work.cached_tokens / work.begun_tokens : 0;
    this.cache.draw(this.of("cache"), {
      value: share(now.blocks_total ? now.ledgers.blocks / now.blocks_total : 0),
      parts: [
        { text: `used ${count(now.ledgers.blocks * size)}` },
        { text: `kept ${count(now.blocks_cached * size)}` },
        { text: `of ${count(now.blocks_total * size)} tokens`, plain: true },
        { text: `hits ${share(hits)}`, plain: true },
      ],
      top: now.blocks_total,
      unit: (blocks) => `${count(blocks * size)} tokens`,
    });
    this.memory.draw(this.of("memory"), {
      value: bytes(memory.reduce((sum, each) => sum + each, 0)),
      parts: processes.map(({ role, rss_bytes }) => ({ text: `${role} ${bytes(rss_bytes)}` })),
      unit: bytes,
    });
  }
}
