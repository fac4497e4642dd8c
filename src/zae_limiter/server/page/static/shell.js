// What is around every view: navigation, search, the connection, light or dark, and logging in and out.

import { html, useEffect, useRef, useState } from "./vendor/htm-3.1.1/standalone.module.js";
import { begin, end, useConnection } from "./data.js";
import { storeText } from "./format.js";
import { Field, go, href, Icon, Mark, ProblemNote } from "./parts.js";

export const PLACES = [
  ["overview", "Overview"],
  ["entities", "Entities"],
  ["limits", "Limits"],
  ["usage", "Usage"],
  ["audit", "Audit"],
  ["health", "Health"],
];

export function Shell({ me, place, onLeave, children }) {
  const current = place === "entity" ? "entities" : place;
  return html`<a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>Skip to the content</a>
    <div class="shell">
      <header class="top">
        <a class="brand" href="#/overview" aria-label="zae-limiter, overview"><${Brand} /><span>zae-limiter</span></a>
        <${Search} />
        <div class="top-aside"><${ConnectionState} /><${ThemeSwitch} />
          ${me.name === "anybody" ? null : html`<button class="button icon-only" onClick=${onLeave} aria-label=${`Log out ${me.name}`} title=${`Log out ${me.name}`}><${Icon} name="out" /></button>`}</div>
      </header>
      <nav class="side" aria-label="Views"><ul>${PLACES.map(([key, text]) => html`<li key=${key}>
        <a href=${href(key)} aria-current=${key === current ? "page" : null}><${Icon} name=${key} /><span>${text}</span></a></li>`)}</ul>
        <dl class="whereabouts"><dt>Namespace</dt><dd><bdi>${me.namespace}</bdi></dd><dt>Store</dt><dd><bdi>${storeText(me.store_kind)}</bdi></dd>
          <dt>You are</dt><dd><bdi>${me.name}</bdi>, ${me.changes ? "may change" : "read only"}</dd></dl></nav>
      <main id="main" tabindex="-1">${children}</main>
    </div>`;
}

export function Brand() {
  return html`<svg class="brand-mark" viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="8" /><path d="M8 9h16v3.2L13.2 21H24v3H8v-3.2L18.8 12H8z" /></svg>`;
}

// Goes to entities whose ids begin with what is typed; `/` comes here from anywhere.
function Search() {
  const input = useRef(null);
  const [text, setText] = useState("");
  useEffect(() => {
    const onKey = (event) => {
      const isTyping = event.target.closest && event.target.closest("input,textarea,select,dialog");
      if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
        event.preventDefault();
        input.current.focus();
        input.current.select();
      }
    };
    document.addEventListener("keydown", onKey);
    return () => document.removeEventListener("keydown", onKey);
  }, []);
  const submit = (event) => {
    event.preventDefault();
    go("entities", { q: text.trim() });
  };
  const onKeyDown = (event) => {
    if (event.key === "Escape") input.current.blur();
  };
  return html`<form class="search" role="search" onSubmit=${submit}><${Icon} name="search" />
    <input ref=${input} type="search" class="input" aria-label="Find an entity by the beginning of its id" placeholder="Find an entity" value=${text}
      autocomplete="off" spellcheck=${false} onInput=${(event) => setText(event.target.value)} onKeyDown=${onKeyDown} />
    <kbd aria-hidden="true">/</kbd></form>`;
}

function ConnectionState() {
  const state = useConnection();
  const words = { live: "Live", lost: "Reconnecting…", idle: "" };
  return html`<span class="connection ${state}" role="status">${state === "idle" ? null : html`<${Mark} kind=${state === "live" ? "good" : "near"} /><span class="word">${words[state]}</span>`}</span>`;
}

const THEMES = { auto: "light", light: "dark", dark: "auto" };
const THEME_ICONS = { auto: "auto", light: "sun", dark: "moon" };

function ThemeSwitch() {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme || "auto");
  const turn = () => {
    const next = THEMES[theme];
    setTheme(next);
    if (next === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem("zae-limiter-theme", next);
    } catch {
      // It holds until the page is left.
    }
    window.dispatchEvent(new Event("theme"));
  };
  useEffect(() => {
    const query = matchMedia("(prefers-color-scheme: dark)");
    const told = () => window.dispatchEvent(new Event("theme"));
    query.addEventListener("change", told);
    return () => query.removeEventListener("change", told);
  }, []);
  const words = { auto: "as the system", light: "light", dark: "dark" };
  return html`<button class="button icon-only" onClick=${turn} aria-label=${`Colours: ${words[theme]}. Change`} title=${`Colours: ${words[theme]}`}><${Icon} name=${THEME_ICONS[theme]} /></button>`;
}

export function Login({ onBegin, first }) {
  const [token, setToken] = useState("");
  const [problem, setProblem] = useState(first || null);
  const [isBusy, setBusy] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    if (!token.trim() || isBusy) return;
    setBusy(true);
    try {
      await begin(token.trim());
      onBegin();
    } catch (error) {
      setProblem(error);
      setBusy(false);
    }
  };
  return html`<main class="login"><form class="card" onSubmit=${submit}>
    <h1><${Brand} />zae-limiter</h1>
    <p>Show a token that this server knows. It is sent once; a cookie stands for it, for twelve hours.</p>
    <${Field} label="Token"><input class="input" type="password" autocomplete="current-password" autofocus value=${token} onInput=${(event) => setToken(event.target.value)} /><//>
    <${ProblemNote} problem=${problem} />
    <button class="button primary" disabled=${isBusy}>Log in</button>
    <p class="hint"><code>zae-limiter serve --ui</code> prints one when it starts; <code>zae-limiter serve token NAME --scope read</code> makes others.</p></form></main>`;
}

export async function leave() {
  await end().catch(() => {});
  location.hash = "";
  location.reload();
}
