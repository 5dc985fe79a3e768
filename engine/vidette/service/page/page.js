// The page: watches the server while it is looked at, and lets its parts show what comes.

import { Chat } from "./chat.js";
import { find, write } from "./elements.js";
import { Graphs } from "./graphs.js";
import { ask, events, key } from "./server.js";
import { Tree } from "./tree.js";

const FEED = "v1/activity?interval=1&limit=200";
const LONGEST_WAIT = 10_000; // ms

const graphs = new Graphs();
const tree = new Tree(cancel);
new Chat(demandKey);

function tell(text) {
  write(find("#news"), text);
}

function showHealth(state, text) {
  const chip = find("#health");
  chip.className = `state ${state}`;
  write(chip, text);
}

async function cancel(rid) {
  try {
    const answer = await ask("abort_request", { body: { rid, abort_message: "cancelled on the page" } });
    const { matched } = await answer.json();
    tell(matched ? `Cancelled ${rid}.` : `${rid} was over already.`);
  } catch (error) {
    if (error.needsKey) demandKey(error);
    else tell(`${rid} was not cancelled: ${error.message}`);
  }
}

// --- the key -------------------------------------------------------------------------

let keyGiven = () => {};

const waitKey = () => new Promise((given) => (keyGiven = given));

function demandKey(refusal) {
  find("#key-form").hidden = false;
  if (refusal.status === 403) tell("That needs the admin key.");
  else tell(key.get() ? "That key is wrong." : "This server needs a key.");
}

find("#key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key.set(find("#key").value.trim());
  find("#key").value = "";
  tell("");
  keyGiven();
});
find("#forget").addEventListener("click", () => {
  key.set("");
  location.reload();
});
find("#key-form").hidden = !key.get();

// --- the feed --------------------------------------------------------------------------

function show(activity) {
  const { health, draining } = activity.statistics;
  if (health.ready) showHealth("ready", "ready");
  else showHealth(health.live && !draining ? "paused" : "broken", health.reason);
  graphs.add(activity);
  tree.show(activity);
}

function visible() {
  return new Promise((done) => {
    const look = () => {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", look);
      done();
    };
    document.addEventListener("visibilitychange", look);
    look();
  });
}

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

async function read() {
  const looking = new AbortController();
  const stop = () => document.hidden && looking.abort();
  document.addEventListener("visibilitychange", stop);
  try {
    const response = await ask(FEED, { signal: looking.signal });
    for await (const data of events(response)) {
      if (data === "[DONE]") return;
      show(JSON.parse(data));
    }
  } catch (error) {
    if (!looking.signal.aborted) throw error;
  } finally {
    document.removeEventListener("visibilitychange", stop);
  }
}

async function watch() {
  let wait = 500;
  for (;;) {
    await visible();
    try {
      if (!find("#model").textContent) {
        const { data } = await (await ask("v1/models")).json();
        write(find("#model"), data[0].id);
      }
      await read();
      if (document.hidden) continue;
      showHealth("broken", "the server has ended the connection");
      wait = 500;
    } catch (error) {
      if (error.needsKey) {
        showHealth("broken", "no access");
        demandKey(error);
        await waitKey();
        continue;
      }
      showHealth("broken", "no connection");
      wait = Math.min(2 * wait, LONGEST_WAIT);
    }
    await sleep(wait);
  }
}

watch();
