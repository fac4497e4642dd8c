// Numbers, money and times as people read them. Pure: nothing here knows the page or the server.

const GROUPED = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const COMPACT = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });
const SIGNS = { USD: "$", EUR: "€", GBP: "£", JPY: "¥" };
const MICRO = 1e6;

function money(value, unit, text) {
  const currency = unit.replace(/_micro$/, "").toUpperCase();
  const sign = value < 0 ? "−" : "";
  return currency in SIGNS ? `${sign}${SIGNS[currency]}${text}` : `${sign}${text} ${currency}`;
}

// An amount of a limit: 12,345, or $1.25 where the unit is money.
export function amount(value, unit = null) {
  if (value === null || value === undefined) return "–";
  if (!unit) return GROUPED.format(value).replace("-", "−");
  const text = (Math.abs(value) / MICRO).toLocaleString("en-US", {
    minimumFractionDigits: 2,
    maximumFractionDigits: Math.abs(value) < MICRO / 100 ? 6 : 2, // what is less than a cent would else be nothing
  });
  return money(value, unit, text);
}

// The same in few letters, for axes.
export function compact(value, unit = null) {
  if (!unit) return COMPACT.format(value);
  return money(value, unit, COMPACT.format(Math.abs(value) / MICRO));
}

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms > 0 && ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  const seconds = ms / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 100) return `${Math.round(seconds)} s`;
  const minutes = seconds / 60;
  if (minutes < 100) return `${Math.round(minutes)} min`;
  const hours = minutes / 60;
  return hours < 48 ? `${Math.round(hours)} h` : `${Math.round(hours / 24)} days`;
}

export function ago(atMs, nowMs) {
  const passed = nowMs - atMs;
  return passed < 1500 ? "now" : `${duration(Math.floor(passed / 1000) * 1000)} ago`.replace(".0", "");
}

const TIME = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };

export function clockTime(ms) {
  return new Date(ms).toLocaleTimeString("en-GB", TIME);
}

export function dateTime(ms) {
  const date = new Date(ms).toLocaleDateString("en-CA");
  return `${date} ${clockTime(ms)}`;
}

// A window of usage begins at a round time of UTC, whatever the clock on the wall.
export function windowTime(ms, kind) {
  const text = new Date(ms).toISOString();
  if (kind === "monthly") return text.slice(0, 7);
  return kind === "daily" ? text.slice(0, 10) : `${text.slice(5, 10)} ${text.slice(11, 16)}`;
}

export function dayText(ms) {
  return new Date(ms).toLocaleDateString("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });
}

export function percent(ratio) {
  const value = ratio * 100;
  return `${value > 0 && value < 1 ? "<1" : Math.floor(value)} %`.replace("-", "−");
}

export function plural(count, one, many = `${one}s`) {
  return `${GROUPED.format(count)} ${count === 1 ? one : many}`;
}

const STORES = { memory: "Memory", sqlite: "SQLite", redis: "Redis", postgresql: "PostgreSQL", postgres: "PostgreSQL", dynamodb: "DynamoDB" };

export function storeText(kind) {
  return STORES[kind] || kind;
}
