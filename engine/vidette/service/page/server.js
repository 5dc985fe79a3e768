// What the page asks of its server, with the key if there is one.

const KEPT = "vidette-key";

export const key = {
  get: () => sessionStorage.getItem(KEPT) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEPT, value) : sessionStorage.removeItem(KEPT)),
};

/** What a server says when it does not do as it is asked. */
export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }

  get needsKey() {
    return this.status === 401 || this.status === 403;
  }
}

/** Ask, and return the response once its status is known to be fine. */
export async function ask(path, { body, signal } = {}) {
  const headers = {};
  if (key.get()) headers.authorization = `Bearer ${key.get()}`;
  if (body) headers["content-type"] = "application/json";
  const response = await fetch(path, {
    method: body ? "POST" : "GET",
    body: body && JSON.stringify(body),
    headers,
    signal,
    cache: "no-store",
  });
  if (!response.ok) {
    const said = await response.json().catch(() => ({}));
    throw new Refusal(response.status, said.error?.message ?? `The server answered ${response.status}.`);
  }
  return response;
}

/** Yield the data of server-sent events; an EventSource could not send a key. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const frames = (rest + value).split("\n\n");
      rest = frames.pop();
      for (const frame of frames) if (frame.startsWith("data: ")) yield frame.slice(6);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
