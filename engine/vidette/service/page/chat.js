// The playground: a conversation, answered in pieces. Stopping closes the connection, and so ends the request.

import { count, find, make, rate, write } from "./elements.js";
import { ask, events } from "./server.js";

/** The playground; calls `onRefusal` with what the server refused for want of a key. */
export class Chat {
  constructor(onRefusal) {
    this.onRefusal = onRefusal;
    this.messages = [];
    this.asking = null;
    this.log = find("#log");
    this.prompt = find("#prompt");
    const form = find("#chat-form");
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.asking) form.requestSubmit();
    });
    find("#chat").addEventListener("keydown", ({ key }) => key === "Escape" && this.stop());
    find("#stop").addEventListener("click", () => this.stop());
    find("#clear").addEventListener("click", () => this.clear());
  }

  stop() {
    this.asking?.abort();
  }

  clear() {
    this.stop();
    this.messages = [];
    this.log.replaceChildren();
    this.prompt.focus();
  }

  async send() {
    if (this.asking) return;
    const content = this.prompt.value.trim();
    if (!content) return;
    const asking = (this.asking = new AbortController());
    const messages = this.messages;
    messages.push({ role: "user", content });
    this.say("user", content);
    this.prompt.value = "";
    this.busy(true);
    const answer = this.say("assistant", "");
    const took = make("p", { class: "quiet took" });
    const began = performance.now();
    let text = "";
    let first = 0;
    let usage = null;
    let failure = null;
    try {
      for await (const chunk of this.chunks(messages, asking.signal)) {
        if (chunk.error) throw new Error(chunk.error.message);
        usage = chunk.usage ?? usage;
        const piece = chunk.choices?.[0]?.delta?.content;
        if (!piece) continue;
        first ||= performance.now();
        text += piece;
        this.follow(() => answer.append(piece));
      }
    } catch (error) {
      failure = error;
      if (error.needsKey) this.onRefusal(error);
    }
    if (text) messages.push({ role: "assistant", content: text });
    else if (messages.at(-1)?.content === content) messages.pop(); // it was not answered
    const stopped = asking.signal.aborted;
    if (failure && !stopped) this.say("failed", failure.message);
    if (stopped) write(took, "Stopped.");
    else if (usage) write(took, tell(usage.completion_tokens, first - began, performance.now() - first));
    if (answer.isConnected && took.textContent) this.follow(() => this.log.append(took));
    this.asking = null;
    this.busy(false);
  }

  async *chunks(messages, signal) {
    const body = {
      messages,
      stream: true,
      stream_options: { include_usage: true },
      max_tokens: find("#max-tokens").valueAsNumber,
      temperature: find("#temperature").valueAsNumber,
      rid: `chat-${crypto.getRandomValues(new Uint32Array(1))[0].toString(16).padStart(8, "0")}`,
    };
    const response = await ask("v1/chat/completions", { body, signal });
    for await (const data of events(response)) {
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
    throw new Error("The answer was cut short.");
  }

  say(who, text) {
    const said = make("div", { class: `said ${who}` }, text);
    this.follow(() => this.log.append(said));
    return said;
  }

  // Whoever has scrolled up to read is left there.
  follow(change) {
    const atEnd = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 24;
    change();
    if (atEnd) this.log.scrollTop = this.log.scrollHeight;
  }

  busy(busy) {
    this.log.setAttribute("aria-busy", String(busy)); // it is read out when it is whole
    find("#send").disabled = busy;
    find("#stop").disabled = !busy;
  }
}

function tell(tokens, first, rest) {
  const pace = tokens > 1 && rest > 0 ? `, then ${rate(((tokens - 1) * 1000) / rest)} a second` : "";
  return `${count(tokens)} tokens, the first after ${count(first)} ms${pace}`;
}
