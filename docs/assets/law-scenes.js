/* Buckets to try, on the page "the law": each `<div class="law-scene" data-scene="…">` becomes one.

   What stands behind such a div is its picture for those without scripts; it is hidden. The clock of a scene
   is its own: it runs, stands, and goes on by a step. Where the reader prefers less motion it stands at first.
   The arithmetic is in law.js. */
(() => {
  "use strict";

  const { Bucket } = globalThis.zaeLaw;
  const MILLI = 1000n;
  const STEPS = [[1n, "1 ms"], [100n, "100 ms"], [1000n, "1 s"], [10000n, "10 s"]];

  const each = (capacity, amount, seconds) => ({
    capacity: capacity * MILLI,
    amount: amount * MILLI,
    period: seconds * 1000n,
  });

  const SCENES = {
    drain: {
      title: "A bucket to drain",
      rates: { rpm: each(10n, 30n, 60n) },
      says: { rpm: "10 at most, 30 a minute" },
      acts: [
        ["Take 1", (s) => s.ask({ rpm: 1n })],
        ["Take 4", (s) => s.ask({ rpm: 4n })],
        ["Take 11", (s) => s.ask({ rpm: 11n })],
        ["Ask again 1 ms too early", (s) => s.again(-1n)],
        ["Ask again at the told millisecond", (s) => s.again(0n)],
      ],
    },
    both: {
      title: "Two limits, all or none",
      rates: { rpm: each(4n, 60n, 60n), tpm: each(1000n, 6000n, 60n) },
      says: { rpm: "4 at most, 60 a minute", tpm: "1,000 at most, 6,000 a minute" },
      acts: [
        ["1 request, 100 tokens", (s) => s.ask({ rpm: 1n, tpm: 100n })],
        ["1 request, 700 tokens", (s) => s.ask({ rpm: 1n, tpm: 700n })],
        ["Ask again at the told millisecond", (s) => s.again(0n)],
      ],
    },
    debt: {
      title: "What it really cost",
      rates: { tpm: each(1000n, 6000n, 60n) },
      says: { tpm: "1,000 at most, 6,000 a minute" },
      belowZero: true,
      acts: [
        ["Reserve 400", (s) => s.ask({ tpm: 400n })],
        ["It took 150: settle", (s) => s.settle({ tpm: 150n })],
        ["It took 1,700: settle", (s) => s.settle({ tpm: 1700n })],
        ["It failed: refund", (s) => s.refund()],
      ],
    },
    line: {
      title: "A line",
      rates: { calls: each(2n, 1n, 1n) },
      says: { calls: "2 at most, 1 a second" },
      belowZero: true,
      acts: [
        ["Wait for 1, up to 5 s", (s) => s.wait({ calls: 1n }, 5000n)],
        ["Take 1 without waiting", (s) => s.ask({ calls: 1n })],
      ],
    },
  };

  const number = (milli) => {
    const whole = milli < 0n ? -((-milli) / MILLI) : milli / MILLI;
    const rest = (milli < 0n ? -milli : milli) % MILLI;
    const sign = milli < 0n && whole === 0n ? "-" : "";
    return `${sign}${whole.toLocaleString("en")}.${String(rest).padStart(3, "0")}`;
  };
  const ms = (wait) => `${wait.toLocaleString("en")} ms`;
  const amounts = (demand) => Object.entries(demand).map(([name, count]) => `${count.toLocaleString("en")} ${name}`).join(", ");
  const inMilli = (demand) => Object.fromEntries(Object.entries(demand).map(([name, count]) => [name, count * MILLI]));

  function element(kind, attributes = {}, ...children) {
    const made = document.createElement(kind);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  class Scene {
    constructor(place, told) {
      this.told = told;
      this.now = this.begun = 1774735200000n;
      this.bucket = new Bucket(told.rates, this.now);
      this.leases = [];
      this.waiting = [];
      this.refused = null;
      this.runs = !matchMedia("(prefers-reduced-motion: reduce)").matches;
      this.#build(place);
      this.say("The bucket is full.");
      this.draw();
      this.#tick();
    }

    ask(demand) {
      const found = this.bucket.acquire(inMilli(demand), this.now);
      this.refused = null;
      if (found.admitted) {
        this.leases.push({ lease: found.lease, asked: demand });
        this.say(`Admitted: ${amounts(demand)}.`);
      } else if (found.retryAfter === null) {
        this.say(`Refused for ever: ${amounts(demand)} is more than the bucket can hold.`);
      } else {
        this.refused = { demand, at: this.now + found.retryAfter };
        const rest = Object.keys(demand).length > found.refusing.length ? " Nothing was taken of the other." : "";
        this.say(`Refused by ${found.refusing.join(" and ")}: ${amounts(demand)} fits in ${ms(found.retryAfter)}.${rest}`);
      }
    }

    again(early) {
      if (this.refused === null) return this.say("Nothing was refused. Take until something is.");
      const { demand, at } = this.refused;
      this.#pass(at + early - this.now);
      this.ask(demand);
    }

    settle(totals) {
      const last = this.leases.pop();
      if (last === undefined) return this.say("There is no lease. Reserve something first.");
      this.bucket.settle(last.lease, inMilli(totals), this.now);
      this.say(`${amounts(last.asked)} were reserved, it took ${amounts(totals)}: the difference is put right.`);
    }

    refund() {
      const last = this.leases.pop();
      if (last === undefined) return this.say("There is no lease. Reserve something first.");
      this.bucket.refund(last.lease, this.now);
      this.say(`${amounts(last.asked)} come back.`);
    }

    wait(demand, patience) {
      const found = this.bucket.book(inMilli(demand), this.now, patience);
      if (!found.admitted) return this.say(`Refused at once: the wait would be ${ms(found.retryAfter)}.`);
      this.named = (this.named ?? 0) + 1;
      this.waiting.push({ name: `job ${this.named}`, slot: this.now + found.wait });
      this.say(`Job ${this.named} ${found.wait === 0n ? "begins at once" : `begins in ${ms(found.wait)}`}.`);
    }

    say(text) {
      this.answer.textContent = text;
    }

    draw() {
      const held = this.bucket.at(this.now);
      for (const [name, rate] of Object.entries(this.told.rates)) {
        const { meter, fill, text } = this.meters[name];
        const part = (Number(held[name]) / Number(rate.capacity)) * 100;
        fill.style.width = `${Math.min(Math.abs(part), 100)}%`;
        fill.classList.toggle("law-debt", part < 0);
        const shown = `${number(held[name])} of ${number(rate.capacity).split(".")[0]}`;
        text.textContent = shown;
        meter.setAttribute("aria-valuenow", String(Math.max(Math.round(part), this.told.belowZero ? -100 : 0)));
        meter.setAttribute("aria-valuetext", shown);
      }
      const passed = this.now - this.begun;
      this.time.textContent = `${passed / 1000n}.${String(passed % 1000n).padStart(3, "0")} s`;
      this.run.textContent = this.runs ? "Stop the clock" : "Run the clock";
      this.waiting = this.waiting.filter((one) => one.slot > this.now - 2000n);
      const rows = this.waiting.map((one) => (one.slot > this.now ? `${one.name}: in ${ms(one.slot - this.now)}` : `${one.name}: at work`));
      if (this.jobs) this.jobs.textContent = rows.length > 0 ? rows.join("   ") : "Nobody waits.";
    }

    #pass(wait) {
      if (wait > 0n) this.now += wait;
    }

    #tick() {
      let last = performance.now();
      const step = (at) => {
        if (!this.root.isConnected) return; // another page was opened
        const passed = BigInt(Math.max(0, Math.floor(at - last)));
        last += Number(passed);
        if (this.runs && passed > 0n) {
          this.#pass(passed);
          this.draw();
        }
        requestAnimationFrame(step);
      };
      requestAnimationFrame(step);
    }

    #button(label, act) {
      const button = element("button", { type: "button" }, label);
      button.addEventListener("click", () => {
        act();
        this.draw();
      });
      return button;
    }

    #build(place) {
      const { told } = this;
      this.meters = {};
      this.root = element("section", { class: "law-box", "aria-label": told.title });
      this.root.append(element("p", { class: "law-title" }, told.title));
      for (const name of Object.keys(told.rates)) {
        const fill = element("span", { class: "law-fill" });
        const least = told.belowZero ? "-100" : "0";
        const meter = element(
          "span",
          { class: "law-meter", role: "meter", "aria-label": `${name}: ${told.says[name]}`, "aria-valuemin": least, "aria-valuemax": "100" },
          fill,
        );
        const text = element("span", { class: "law-held" });
        const label = element("span", { class: "law-name" }, name, element("small", {}, ` ${told.says[name]}`));
        this.root.append(element("div", { class: "law-limit" }, label, meter, text));
        this.meters[name] = { meter, fill, text };
      }
      this.answer = element("p", { class: "law-answer", role: "status" });
      this.time = element("span", { class: "law-time" });
      this.run = this.#button("", () => (this.runs = !this.runs));
      const acts = told.acts.map(([label, act]) => this.#button(label, () => act(this)));
      const steps = STEPS.map(([wait, label]) => this.#button(`+ ${label}`, () => this.#pass(wait)));
      this.root.append(element("div", { class: "law-acts", role: "group", "aria-label": "ask" }, ...acts), this.answer);
      if (told === SCENES.line) {
        this.jobs = element("p", { class: "law-jobs" });
        this.root.append(this.jobs);
      }
      const clock = element("div", { class: "law-acts law-clock", role: "group", "aria-label": "clock" }, this.time, this.run, ...steps);
      this.root.append(clock);
      place.replaceChildren(this.root);
    }
  }

  function start() {
    for (const place of document.querySelectorAll(".law-scene:not([data-ready])")) {
      place.dataset.ready = "yes";
      new Scene(place, SCENES[place.dataset.scene]);
      const picture = place.nextElementSibling;
      picture.hidden = true;
      picture.style.display = "none"; // a theme may say that blocks are shown
    }
  }

  if (globalThis.document$) globalThis.document$.subscribe(start); // a site that changes pages without loading them
  else if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
