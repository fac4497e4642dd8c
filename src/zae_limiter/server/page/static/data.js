// What the server is asked and told: one place for requests, for errors, and for the stream of what happens.

import { useCallback, useEffect, useRef, useState } from "./vendor/htm-3.1.1/standalone.module.js";

const ROOT = new URL("../", new URL(location.pathname, location.origin));

// An error as the server tells it, in a problem document, or that it cannot be reached.
export class Problem extends Error {
  constructor(status, told) {
    super(told.detail || told.title || `the server answered ${status}`);
    this.status = status;
    this.told = told;
  }

  get isConnection() {
    return this.status === 0;
  }
}

// Clocks differ: what the server said last about its time, and when we heard it.
const clock = { serverMs: Date.now(), heardMs: performance.now() };

export function serverNow() {
  return clock.serverMs + performance.now() - clock.heardMs;
}

function hearTime(answer) {
  if (answer && typeof answer.now_ms === "number") {
    clock.serverMs = answer.now_ms;
    clock.heardMs = performance.now();
  }
}

// How the server is reached: "live" while it tells what happens, "lost", or "idle" where nothing moves.
const listeners = new Set();
const connection = { state: "idle", streams: 0 };

function say(state) {
  if (connection.state === state) return;
  connection.state = state;
  for (const listener of listeners) listener(state);
}

export function useConnection() {
  const [state, setState] = useState(connection.state);
  useEffect(() => {
    listeners.add(setState);
    setState(connection.state);
    return () => listeners.delete(setState);
  }, []);
  return state;
}

function address(path, params = {}) {
  const url = new URL(path, ROOT);
  for (const [name, value] of Object.entries(params)) {
    if (value !== null && value !== undefined && value !== "") url.searchParams.set(name, value);
  }
  return url;
}

async function send(path, params, options) {
  let response;
  try {
    response = await fetch(address(path, params), { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    say("lost");
    throw new Problem(0, { detail: "the server cannot be reached; it may be restarting" });
  }
  if (connection.state === "lost" && !connection.streams) say("idle");
  const isJson = /json/.test(response.headers.get("content-type") || "");
  const told = isJson ? await response.json() : {};
  if (!response.ok) {
    if (response.status === 401 && path.startsWith("v1/")) window.dispatchEvent(new Event("session-over"));
    throw new Problem(response.status, told);
  }
  hearTime(told);
  return told;
}

export function view(name, params, signal) {
  return send(`v1/view/${name}`, params, { signal });
}

export function change(verb, body) {
  return send(`v1/change/${verb}`, {}, {
    method: "POST",
    headers: { "content-type": "application/json", "x-zae-limiter": "1" },
    body: JSON.stringify(body),
  });
}

export function begin(token) {
  const headers = { "content-type": "application/json", "x-zae-limiter": "1" };
  return send("ui/session", {}, { method: "POST", headers, body: JSON.stringify({ token }) });
}

export function end() {
  return send("ui/session", {}, { method: "DELETE", headers: { "x-zae-limiter": "1" } });
}

// By which the server knows one intent again, however often it is sent. Also where there is no secure context.
export function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return `page-${[...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

// A view's data, kept while it is asked for again, so that nothing flickers; `after` counts what may have changed it.
export function useView(name, params, { everyMs = 0, isWanted = true, after = 0 } = {}) {
  const asked = isWanted ? JSON.stringify([name, params]) : "";
  const [found, setFound] = useState({ asked: "", data: null, problem: null });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    if (!asked) return undefined;
    const aborter = new AbortController();
    let timer = 0;
    const look = async () => {
      try {
        const data = await view(name, params, aborter.signal);
        setFound({ asked, data, problem: null });
      } catch (problem) {
        if (problem.name === "AbortError") return;
        setFound((old) => ({ asked, data: old.asked === asked ? old.data : null, problem }));
      }
      if (everyMs) timer = setTimeout(() => (document.hidden ? wait() : look()), everyMs);
    };
    const wait = () => {
      timer = setTimeout(() => (document.hidden ? wait() : look()), everyMs);
    };
    look();
    return () => {
      aborter.abort();
      clearTimeout(timer);
    };
  }, [asked, turn, after, everyMs]);
  const reload = useCallback(() => setTurn((old) => old + 1), []);
  const isCurrent = found.asked === asked;
  return {
    data: isCurrent ? found.data : null,
    previous: found.data,
    problem: isCurrent ? found.problem : null,
    isLoading: isWanted && !isCurrent,
    reload,
  };
}

// What happens, as it happens. The stream ends while nobody looks and begins again by itself.
export function useLive(params, handlers, onReturn) {
  const latest = useRef(handlers);
  latest.current = handlers;
  useEffect(() => {
    let source = null;
    let timer = 0;
    let waitMs = 500;
    let wasLost = false;
    let patience = 0; // a stream that ends in good order is back before anybody need know
    const close = () => {
      clearTimeout(timer);
      if (source) source.close();
      source = null;
    };
    const retry = () => {
      close();
      wasLost = true;
      patience ||= setTimeout(() => document.hidden || say("lost"), 1200);
      timer = setTimeout(open, waitMs);
      waitMs = Math.min(waitMs * 2, 8000);
    };
    const open = () => {
      close();
      if (document.hidden) return;
      source = new EventSource(address("v1/view/live", params));
      source.onopen = () => {
        clearTimeout(patience);
        patience = 0;
        say("live");
        waitMs = 500;
        if (wasLost && onReturn) onReturn();
        wasLost = false;
      };
      source.onerror = () => {
        // A session that is over ends a stream like a server that is gone: the next look tells which.
        view("me").catch(() => {});
        retry();
      };
      for (const name of Object.keys(latest.current)) {
        source.addEventListener(name, (event) => {
          const told = JSON.parse(event.data);
          hearTime(told);
          latest.current[name](told);
        });
      }
    };
    const onVisibility = () => {
      if (document.hidden) {
        close();
      } else if (!source) {
        wasLost = true; // what happened meanwhile was missed
        open();
      }
    };
    document.addEventListener("visibilitychange", onVisibility);
    connection.streams += 1;
    open();
    return () => {
      connection.streams -= 1;
      clearTimeout(patience);
      document.removeEventListener("visibilitychange", onVisibility);
      close();
      say("idle");
    };
  }, [JSON.stringify(params)]);
}
