// Live requests as a tree: each with the scopes that it has in the front, the scheduler and the detokenizer.

import { count, find, make, rate, seconds, write } from "./elements.js";

const LINGER = 3; // seconds for which one that is over is shown
const MOST_OVER = 50;

const FRONT = {
  tokenising: "tokenises the prompt",
  held: "waits for processes to start again",
  waiting: "waits for the first token",
  closing: "has left",
  over: "over",
};
const SCHEDULER = {
  waiting: "queued, or computes the prompt",
  running: "decodes",
  closing: "is told to free it",
  over: "free",
};
const DETOKENIZER = { running: "open", closing: "open until the last row", over: "closed" };

/** The role and the words of each scope of a request. */
function scopesOf({ state, scheduler, detokenizer, unread_tokens: unread, cached_tokens: cached }) {
  const found = state === "running" && cached ? `, ${count(cached)} tokens of the prompt cached` : "";
  const held = detokenizer || state === "over";
  return [
    ["front", FRONT[state] ?? (unread ? `${count(unread)} tokens unread` : "reads along")],
    [scheduler ?? "scheduler", (SCHEDULER[state] ?? "not sent yet") + found],
    [detokenizer ?? "detokenizer", (held && DETOKENIZER[state]) || "nothing to hold yet"],
  ];
}

/** One request: its row, and those of its scopes. */
class Branch {
  constructor(told, tree) {
    this.tree = tree;
    this.rid = told.rid;
    this.overSince = null;
    this.twist = make("button", { class: "twist", type: "button", tabindex: -1, "aria-hidden": "true" });
    this.cancel = make("button", { class: "cancel", type: "button", tabindex: -1 }, "Cancel");
    this.cancel.setAttribute("aria-label", `Cancel ${told.rid}`);
    this.state = make("span", { class: "state" });
    this.numbers = [0, 1, 2, 3].map(() => make("td", { role: "gridcell", class: "number" }));
    const name = make("span", { class: "rid", title: `${told.rid}, vid ${told.vid}` }, told.rid);
    this.row = make(
      "tr",
      { role: "row", "aria-level": 1, tabindex: -1 },
      make("td", { role: "gridcell" }, this.twist, name),
      make("td", { role: "gridcell" }, this.state),
      ...this.numbers,
      make("td", { role: "gridcell" }, this.cancel),
    );
    this.scopes = [0, 1, 2].map(() => {
      const cells = [make("td", { role: "gridcell" }), make("td", { role: "gridcell", colspan: 6 })];
      return { cells, row: make("tr", { role: "row", "aria-level": 2, tabindex: -1 }, ...cells) };
    });
    this.twist.addEventListener("click", () => this.fold(this.open));
    this.cancel.addEventListener("click", () => tree.onCancel(this.rid));
    this.rows = [this.row, ...this.scopes.map(({ row }) => row)];
    this.fold(tree.folded);
  }

  get open() {
    return this.row.getAttribute("aria-expanded") === "true";
  }

  get over() {
    return this.overSince !== null;
  }

  fold(folded) {
    this.row.setAttribute("aria-expanded", String(!folded));
    for (const { row } of this.scopes) row.hidden = folded;
  }

  show(told, now) {
    const before = this.told;
    const passed = before ? now - this.at : 0;
    const pace = passed > 0 ? (told.output_tokens - before.output_tokens) / passed : 0;
    this.told = told;
    this.at = now;
    write(this.state, told.group ? `${told.state}, one of several` : told.state);
    this.state.className = `state ${told.state}`;
    this.row.classList.toggle("over", this.over);
    const prompt = told.prompt_tokens === null ? "–" : count(told.prompt_tokens);
    const texts = [seconds(told.age_s), prompt, count(told.output_tokens), this.over ? "" : rate(Math.max(0, pace))];
    texts.forEach((text, place) => write(this.numbers[place], text));
    const over = this.over || told.state === "closing";
    this.cancel.disabled = over;
    this.cancel.classList.toggle("gone", this.over);
    scopesOf(told).forEach(([role, words], place) => {
      write(this.scopes[place].cells[0], role);
      write(this.scopes[place].cells[1], words);
    });
  }

  end(now) {
    this.overSince = now;
    this.show({ ...this.told, state: "over", prompt_tokens: this.prompt ?? null }, now);
  }

  remove() {
    if (this.rows.includes(document.activeElement?.closest("tr"))) {
      const next = this.rows.at(-1).nextElementSibling ?? this.row.previousElementSibling;
      (next?.closest("tr:not([hidden])") ?? find("#fold")).focus();
    }
    for (const row of this.rows) row.remove();
  }
}

/** The tree of all; calls `onCancel` with the rid of one that is to end. */
export class Tree {
  constructor(onCancel) {
    this.onCancel = onCancel;
    this.folded = false;
    this.branches = new Map(); // by vid
    this.body = find("#requests");
    this.current = null;
    this.hovered = false;
    const table = this.body.parentElement;
    table.addEventListener("keydown", (event) => this.onKey(event));
    table.addEventListener("focusin", ({ target }) => this.enter(target.closest("tbody tr")));
    table.addEventListener("pointerenter", () => (this.hovered = true));
    table.addEventListener("pointerleave", () => (this.hovered = false));
    find("#fold").addEventListener("click", ({ target }) => {
      this.folded = !this.folded;
      target.setAttribute("aria-pressed", String(this.folded));
      for (const branch of this.branches.values()) branch.fold(this.folded);
    });
  }

  show({ clock_s: now, requests, more, statistics }) {
    const seen = new Set();
    for (const told of requests) {
      seen.add(told.vid);
      let branch = this.branches.get(told.vid);
      if (!branch) {
        branch = new Branch(told, this);
        this.branches.set(told.vid, branch);
        this.body.append(...branch.rows);
      }
      branch.show(told, now);
      branch.prompt = told.prompt_tokens ?? branch.prompt;
    }
    this.forget(seen, now);
    if (!this.current?.isConnected) this.enter(this.body.querySelector("tr:not([hidden])"));
    const { totals } = statistics;
    const live = statistics.ledgers.front;
    const texts = [
      `${count(live)} live${more ? `, of which ${count(more)} are not listed` : ""}`,
      `${count(totals.finished)} finished`,
      `${count(totals.aborted)} cancelled`,
      `${count(totals.failed)} failed`,
    ];
    write(find("#totals"), texts.join(" · "));
    find("#nothing").hidden = this.branches.size > 0;
  }

  // What is over stays for a moment, so that its end is seen; longer while somebody points at the rows, so that
  // nothing moves away from under a click.
  forget(seen, now) {
    const over = [];
    for (const [vid, branch] of this.branches) {
      if (seen.has(vid)) continue;
      if (!branch.over) branch.end(now);
      if (now < branch.overSince) branch.overSince = now; // another server
      over.push([vid, branch]);
    }
    over.forEach(([vid, branch], place) => {
      const tooMany = over.length - place > MOST_OVER;
      if (tooMany || (!this.hovered && now - branch.overSince >= LINGER)) {
        branch.remove();
        this.branches.delete(vid);
      }
    });
  }

  // One row can be reached by Tab, with its button; the others from there, by the arrows.
  enter(row) {
    if (!row || row === this.current) return;
    const reach = (of, index) => {
      of?.setAttribute("tabindex", index);
      of?.querySelector(".cancel")?.setAttribute("tabindex", index);
    };
    reach(this.current, -1);
    reach(row, 0);
    this.current = row;
  }

  onKey(event) {
    const row = event.target.closest("tbody tr");
    if (!row || event.ctrlKey || event.altKey || event.metaKey) return;
    const rows = [...this.body.querySelectorAll("tr:not([hidden])")];
    const place = rows.indexOf(row);
    const branch = [...this.branches.values()].find(({ rows: own }) => own.includes(row));
    const moves = {
      ArrowDown: () => rows[place + 1],
      ArrowUp: () => rows[place - 1],
      Home: () => rows[0],
      End: () => rows.at(-1),
      ArrowRight: () => (row === branch.row && branch.open ? rows[place + 1] : (branch.fold(false), row)),
      ArrowLeft: () => {
        if (row === branch.row) branch.fold(true);
        return branch.row;
      },
      Delete: () => {
        if (!branch.cancel.disabled) this.onCancel(branch.rid);
        return row;
      },
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    moves[event.key]()?.focus();
  }
}
