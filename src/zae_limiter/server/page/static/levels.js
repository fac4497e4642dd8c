// Levels that move. Between two looks a level is moved by its own refill, so the page asks rarely and is never
// jerky; a look corrects it. Drawn by hand, because it happens ten times a second for everything that is seen.

import { html, useLayoutEffect, useRef } from "./vendor/htm-3.1.1/standalone.module.js";
import { amount, duration, percent } from "./format.js";
import { serverNow } from "./data.js";
import { Mark } from "./parts.js";

export const NEAR = 0.2;
const EVERY_MS = 100;

const moving = new Set();
let timer = 0;

function join(draw) {
  moving.add(draw);
  if (!timer) {
    timer = setInterval(() => {
      if (!document.hidden) moving.forEach((one) => one());
    }, EVERY_MS);
  }
  return () => {
    moving.delete(draw);
    if (!moving.size) {
      clearInterval(timer);
      timer = 0;
    }
  };
}

// What a level holds by now: what it held when it was looked at, and what it gained since.
export function levelNow(level, atMs, nowMs = serverNow()) {
  const gained = (level.per_second || 0) * Math.max(0, (nowMs - atMs) / 1000);
  const top = Math.max(level.capacity, level.available);
  const available = Math.min(level.available + gained, top);
  return { available, ratio: level.capacity ? Math.max(-1, Math.min(1, available / level.capacity)) : 0 };
}

// In which state a level is, as a kind and a word. One token is the least that anybody asks for.
export function stateOf(level, available, ratio) {
  if (available < 0) return ["bad", level.limit.soft ? "exceeded" : "in debt"];
  const least = level.limit.unit ? Math.max(1, level.capacity / 1000) : 1;
  if (available < least) return ["bad", level.limit.soft ? "exceeded" : "refuses"];
  if (ratio <= NEAR) return ["near", "near"];
  return ["good", ratio >= 1 ? "full" : "fine"];
}

export function fullIn(level, available) {
  if (available >= level.capacity) return "full";
  if (level.held) return `${amount(level.held)} at work`; // who knows until when; the server tells the latest
  if (level.per_second > 0) return `full in ${duration(((level.capacity - available) / level.per_second) * 1000)}`;
  if (level.full_in_ms !== null && level.full_in_ms !== undefined) return `full in ${duration(level.full_in_ms)}`;
  return "";
}

// Text in place of other text, in the same node, which the library goes on knowing.
function write(node, text) {
  if (node && node.firstChild) node.firstChild.nodeValue = text;
  else if (node) node.textContent = text;
}

// The bar of one limit of one bucket: how much is left, as a length, as numbers and as a word.
export function LevelBar({ level, at, owner, isBare = false }) {
  const root = useRef(null);
  const look = useRef({ level, at });
  look.current = { level, at };
  useLayoutEffect(() => {
    let said = "";
    let told = 0;
    const draw = () => {
      const node = root.current;
      if (!node) return;
      const { level: current, at: since } = look.current;
      const { available, ratio } = levelNow(current, since);
      const [kind, word] = stateOf(current, available, ratio);
      node.style.setProperty("--ratio", Math.abs(ratio).toFixed(4));
      const shown = Math.floor(available);
      const text = `${shown}|${kind}|${fullIn(current, available)}`;
      if (text === said) return;
      said = text;
      if (!node.classList.contains(kind) || node.classList.contains("debt") !== available < 0) {
        node.classList.remove("good", "near", "bad", "debt");
        node.classList.add(kind);
        node.classList.toggle("debt", available < 0);
      }
      write(node.querySelector(".left"), amount(shown, current.limit.unit));
      write(node.querySelector(".word"), word);
      write(node.querySelector(".full-in"), fullIn(current, available));
      const now = performance.now();
      if (now - told < 1000) return; // who listens is not told ten times a second
      told = now;
      const track = node.querySelector(".track");
      track.setAttribute("aria-valuenow", Math.max(0, shown));
      track.setAttribute("aria-valuetext", `${amount(shown, current.limit.unit)} of ${amount(current.capacity, current.limit.unit)} left, ${word}`);
    };
    draw();
    return join(draw);
  }, [level, at]);
  const { available, ratio } = levelNow(level, at);
  const [kind, word] = stateOf(level, available, ratio);
  const { name, unit, soft } = level.limit;
  return html`<div class="level ${isBare ? "bare" : ""}" ref=${root}>
    ${isBare ? null : html`<span class="limit-name"><bdi>${name}</bdi>${soft ? html` <span class="tag">soft</span>` : null}</span>`}
    <span class="track" role="meter" aria-label=${`${name} of ${owner}`} aria-valuemin="0"
      aria-valuemax=${level.capacity} aria-valuenow=${Math.max(0, Math.floor(available))}><span class="fill"></span></span>
    <span class="figures numbers"><span class="left">${amount(Math.floor(available), unit)}</span
      ><span class="quiet"> / ${amount(level.capacity, unit)}</span></span>
    <span class="level-state"><${LevelMark} /><span class="word">${word}</span></span>
    ${isBare ? null : html`<span class="full-in quiet numbers">${fullIn(level, available)}</span>`}
  </div>`;
}

// All three shapes; the class of the level shows one of them.
function LevelMark() {
  return html`<span class="marks"><${Mark} kind="good" /><${Mark} kind="near" /><${Mark} kind="bad" /></span>`;
}

export function worstOf(bucket) {
  return bucket.levels.find((one) => one.limit.name === bucket.worst) || bucket.levels[0];
}

// A ratio that does not move, for tables.
export function Ratio({ value, refusing }) {
  const bar = useRef(null);
  useLayoutEffect(() => bar.current && bar.current.style.setProperty("--ratio", Math.max(0, value || 0).toFixed(4)), [value]);
  if (value === null || value === undefined) return html`<span class="quiet">–</span>`;
  const kind = value <= 0 || refusing ? "bad" : value <= NEAR ? "near" : "good";
  return html`<span class="level bare ${kind} small" ref=${bar}><span class="track" aria-hidden="true"><span class="fill"></span></span>
    <span class="figures numbers">${percent(value)}</span></span>`;
}
