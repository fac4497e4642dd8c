// The page: who looks, which view, and what it is called. Each view is a module of its own.

import { html, render, useEffect, useState } from "./vendor/htm-3.1.1/standalone.module.js";
import { begin, view } from "./data.js";
import { leave, Login, PLACES, Shell } from "./shell.js";
import { Empty, Loading, ProblemNote } from "./parts.js";
import { Overview } from "./overview.js";
import { Entities } from "./entities.js";
import { Entity } from "./entity.js";
import { Limits } from "./limits.js";
import { Usage } from "./usage.js";
import { Audit } from "./audit.js";
import { Health } from "./health.js";

const VIEWS = { overview: Overview, entities: Entities, entity: Entity, limits: Limits, usage: Usage, audit: Audit, health: Health };

// `#/entity?entity=key-1` as a place and its parameters.
function whereabouts() {
  const [place, query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return { place: place || "overview", params: new URLSearchParams(query), hash: location.hash };
}

function titleOf({ place, params }) {
  const found = PLACES.find(([key]) => key === place);
  const name = place === "entity" ? params.get("entity") : found ? found[1] : "Not found";
  return `${name} · zae-limiter`;
}

function App({ problem }) {
  const [at, setAt] = useState(whereabouts());
  const [me, setMe] = useState(null);
  const [gate, setGate] = useState({ step: problem ? "login" : "asking", problem });
  const ask = async () => {
    try {
      setMe(await view("me"));
      setGate({ step: "in", problem: null });
    } catch (error) {
      setGate(error.status === 401 ? { step: "login", problem: null } : { step: "failed", problem: error });
    }
  };
  useEffect(() => {
    if (!problem) ask();
    const onHash = () => setAt(whereabouts());
    const onOver = () => setGate((old) => (old.step === "in" ? { step: "login", problem: null } : old));
    window.addEventListener("hashchange", onHash);
    window.addEventListener("session-over", onOver);
    return () => {
      window.removeEventListener("hashchange", onHash);
      window.removeEventListener("session-over", onOver);
    };
  }, []);
  useEffect(() => {
    document.title = titleOf(at);
  }, [at]);
  useArrival(at.place + (at.params.get("entity") || ""));
  if (gate.step === "asking") return html`<main class="login"><${Loading} /></main>`;
  if (gate.step === "login") return html`<${Login} onBegin=${ask} first=${gate.problem} />`;
  if (gate.step === "failed") return html`<main class="login"><${ProblemNote} problem=${gate.problem} retry=${ask} /></main>`;
  const View = VIEWS[at.place];
  return html`<${Shell} me=${me} place=${at.place} onLeave=${leave}>${View
    ? html`<${View} params=${at.params} me=${me} key=${at.place} />`
    : html`<${Empty} title="There is no such view">Go back to the <a href="#/overview">overview</a>.<//>`}<//>`;
}

// Whoever goes to another view begins at its heading, as with another document; where we begin is left alone.
function useArrival(where) {
  const [first] = useState(where);
  const [hasLeft, setLeft] = useState(false);
  useEffect(() => {
    if (where === first && !hasLeft) return undefined;
    setLeft(true);
    scrollTo(0, 0);
    const timer = setTimeout(() => {
      const heading = document.querySelector("main h1");
      const isTyping = document.activeElement && document.activeElement.matches("input,textarea,select");
      if (heading && !isTyping) heading.focus({ preventScroll: true });
    }, 60);
    return () => clearTimeout(timer);
  }, [where]);
}

// A token in the address is shown once, and is gone from it before anything else happens.
async function start() {
  const found = /^#token=([^&]+)/.exec(location.hash);
  let problem = null;
  if (found) {
    history.replaceState(null, "", location.pathname);
    try {
      await begin(decodeURIComponent(found[1]));
    } catch (error) {
      problem = error;
    }
  }
  render(html`<${App} problem=${problem} />`, document.getElementById("app"));
}

start();
