/* Tells stories to the law of the documentation: JSON on standard input, what it answers on standard output.
   A story has the rates of its limits, the instant it begins at, and steps; tests/documents/test_law_page.py
   writes them and knows what the limiter answers. */
"use strict";

require("../../docs/assets/law.js");

const big = (amounts) => Object.fromEntries(Object.entries(amounts).map(([name, value]) => [name, BigInt(value)]));
const plain = (amounts) => Object.fromEntries(Object.entries(amounts).map(([name, value]) => [name, String(value)]));
const told = (wait) => (wait === null ? "never" : String(wait));

function tell(story) {
  let now = BigInt(story.begin);
  const rates = Object.fromEntries(Object.entries(story.rates).map(([name, rate]) => [name, big(rate)]));
  const bucket = new zaeLaw.Bucket(rates, now);
  const leases = {};
  return story.steps.map((step, number) => {
    let answer = "";
    now += BigInt(step.pass ?? 0);
    if (step.do === "acquire" || step.do === "book") {
      const demand = big(step.amounts);
      const found = step.do === "book" ? bucket.book(demand, now, BigInt(step.patience)) : bucket.acquire(demand, now);
      if (found.admitted) leases[number] = found.lease;
      if (step.do === "book" && found.admitted && !step.stay) now += found.wait;
      if (step.do === "book") answer = found.admitted ? `waits ${found.wait}` : `refused ${told(found.retryAfter)}`;
      else answer = found.admitted ? "admitted" : `refused ${told(found.retryAfter)} ${found.refusing.sort()}`;
    } else if (leases[step.of] !== undefined) {
      if (step.do === "settle") bucket.settle(leases[step.of], big(step.amounts), now);
      if (step.do === "refund") bucket.refund(leases[step.of], now);
      delete leases[step.of];
    }
    return { answer, held: plain(bucket.at(now)) };
  });
}

let asked = "";
process.stdin.on("data", (text) => (asked += text));
process.stdin.on("end", () => process.stdout.write(JSON.stringify(JSON.parse(asked).map(tell))));
