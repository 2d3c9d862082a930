// A window on a log of any length. The text stays what came over the network, in blocks of bytes;
// only the lines in sight are made into elements, and control characters are shown as pictures.
// Terminal widgets would obey them, and need inline styles, which the pages' policy forbids.
const BLOCK = 1 << 20;
const MOST = 1 << 29; // bytes that are held; beyond, the log has to be downloaded
const LINE = 20; // pixels, as in the style sheet
const TALLEST = 8_000_000; // pixels: browsers draw nothing that is much taller
const SHOWN_LINE = 20_000; // characters of one line
const NUMBERS = 64; // pixels at the left, where the numbers of the lines stand
const PAUSES = [500, 1000, 2000, 5000];
const POLL = 2000; // between readings of a log that is still written
const INVISIBLE =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

function picture(character) {
  const code = character.charCodeAt(0);
  if (code < 0x20) return String.fromCharCode(0x2400 + code);
  return code === 0x7f ? "\u2421" : "\ufffd";
}

function visible(text) {
  const cut = text.length > SHOWN_LINE ? `${text.slice(0, SHOWN_LINE)} … (cut)` : text;
  return cut.replace(/\r$/, "").replace(INVISIBLE, picture);
}

// --- the text ---------------------------------------------------------------------------------

class Lines {
  constructor() {
    this.blocks = [];
    this.size = 0;
    this.count = 0; // lines that have begun
    this.starts = new Float64Array(4096); // the byte at which each begins
    this.open = false; // whether the last one may go on
    this.decoder = new TextDecoder();
  }

  append(bytes) {
    for (let at = 0; at < bytes.length; ) {
      const used = this.size % BLOCK;
      if (used === 0) this.blocks.push(new Uint8Array(BLOCK));
      const part = bytes.subarray(at, at + BLOCK - used);
      this.blocks.at(-1).set(part, used);
      this.index(part);
      this.size += part.length;
      at += part.length;
    }
  }

  index(part) {
    for (let at = 0; at < part.length; ) {
      if (!this.open) this.begin(this.size + at);
      const end = part.indexOf(10, at);
      this.open = end < 0;
      at = this.open ? part.length : end + 1;
    }
  }

  begin(start) {
    if (this.count === this.starts.length) {
      const more = new Float64Array(2 * this.count);
      more.set(this.starts);
      this.starts = more;
    }
    this.starts[this.count++] = start;
    this.open = true;
  }

  text(number) {
    const end = number + 1 < this.count ? this.starts[number + 1] : this.size;
    const start = this.starts[number];
    return this.decode(start, Math.min(end, start + 4 * SHOWN_LINE + 4)).replace(/\n$/, "");
  }

  decode(start, end) {
    const first = Math.floor(start / BLOCK);
    if (end <= (first + 1) * BLOCK) {
      const block = this.blocks[first] ?? new Uint8Array();
      return this.decoder.decode(block.subarray(start - first * BLOCK, end - first * BLOCK));
    }
    const bytes = new Uint8Array(end - start);
    for (let at = start; at < end; ) {
      const block = Math.floor(at / BLOCK);
      const part = this.blocks[block].subarray(at - block * BLOCK, end - block * BLOCK);
      bytes.set(part, at - start);
      at += part.length;
    }
    return this.decoder.decode(bytes);
  }

  // The lines that hold the words, a part at a time: the page stays usable meanwhile.
  async find(words, still, matches) {
    const wanted = words.toLowerCase();
    const STEP = 5000;
    for (let from = 0; from < this.count && still(); from += STEP) {
      const to = Math.min(this.count, from + STEP);
      const end = to < this.count ? this.starts[to] : this.size;
      const lines = this.decode(this.starts[from], end).toLowerCase().split("\n");
      for (let at = 0; at < to - from; at++) {
        if (lines[at].includes(wanted)) matches.push(from + at);
      }
      await new Promise((next) => setTimeout(next));
    }
  }
}

// --- the window -------------------------------------------------------------------------------

class LogWindow {
  constructor(place) {
    this.place = place;
    this.lines = new Lines();
    // A running or failed log is shown from its end.
    this.following = place.dataset.live !== undefined || place.dataset.end !== undefined;
    this.matches = [];
    this.at = -1;
    this.marked = null; // the line that the page's address names
    const [id, line] = location.hash.slice(1).split(":");
    if (place.id && id === place.id && Number(line) > 0) {
      this.marked = Number(line) - 1;
      this.following = false;
    }
    this.build();
    this.load();
  }

  build() {
    const make = (tag, className, text) => {
      const element = document.createElement(tag);
      if (className) element.className = className;
      if (text) element.textContent = text;
      return element;
    };
    const label = this.place.dataset.label ?? "log"; // several windows may stand on a page
    const tools = make("div", "log-tools");
    this.search = make("input");
    this.search.type = "search";
    this.search.placeholder = "Search the log";
    this.search.setAttribute("aria-label", `Search the ${label}`);
    this.hits = make("span", "muted");
    this.hits.setAttribute("role", "status");
    const previous = make("button", "quiet", "↑");
    previous.setAttribute("aria-label", "Previous match");
    const next = make("button", "quiet", "↓");
    next.setAttribute("aria-label", "Next match");
    this.wrap = this.toggle("Wrap", localStorage.getItem("wrap") === "yes");
    this.follow = this.toggle("Follow", this.following);
    this.status = make("span", "muted told");
    const save = make("a", "button quiet", "Download");
    save.href = this.place.dataset.log;
    save.download = this.place.dataset.name;
    this.tools = [this.search, previous, next, this.wrap, this.follow, save];
    this.follow.hidden = this.place.dataset.live === undefined;
    tools.append(this.search, previous, next, this.hits, this.wrap, this.follow, save, this.status);
    this.view = make("div", "log-view");
    this.view.tabIndex = 0;
    this.view.setAttribute("role", "region");
    this.view.setAttribute("aria-label", label[0].toUpperCase() + label.slice(1));
    this.spacer = make("div", "log-spacer");
    this.shown = make("div", "log-lines");
    this.view.append(this.shown, this.spacer);
    this.place.replaceChildren(tools, this.view);
    for (const button of [previous, next, this.wrap, this.follow]) button.type = "button";

    previous.addEventListener("click", () => this.step(-1));
    next.addEventListener("click", () => this.step(1));
    this.search.addEventListener("input", () => this.look());
    this.search.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.step(event.shiftKey ? -1 : 1);
    });
    this.wrap.addEventListener("click", () => {
      const on = this.flip(this.wrap);
      localStorage.setItem("wrap", on ? "yes" : "no");
      this.draw();
    });
    this.follow.addEventListener("click", () => {
      this.following = this.flip(this.follow);
      this.draw();
    });
    this.view.addEventListener("scroll", () => this.scrolled());
    this.shown.addEventListener("click", (event) => this.name(event));
    new ResizeObserver(() => this.draw()).observe(this.view);
  }

  toggle(name, on) {
    const button = document.createElement("button");
    button.className = "quiet toggle";
    button.textContent = name;
    button.setAttribute("aria-pressed", String(on));
    return button;
  }

  flip(button) {
    const on = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(on));
    return on;
  }

  // A click on a line's number puts the line into the address, which can be sent to others.
  name(event) {
    const line = event.target.closest(".log-line");
    const isNumber = line && event.clientX - line.getBoundingClientRect().left < NUMBERS;
    if (!isNumber || !this.place.id) return;
    this.marked = Number(line.dataset.number) - 1;
    this.setFollowing(false);
    const address = new URL(location.href);
    const attempt = /steps\/(\d+)\/attempts\/(\d+)/.exec(this.place.dataset.log);
    if (attempt) {
      address.searchParams.set("step", attempt[1]);
      address.searchParams.set("attempt", attempt[2]);
    }
    address.hash = `${this.place.id}:${line.dataset.number}`;
    history.replaceState(null, "", address);
    this.drawLines();
  }

  // --- loading --------------------------------------------------------------------------------

  async load() {
    this.say("Loading …");
    for (let lost = 0; ; ) {
      const before = this.lines.size;
      try {
        const isOpen = await this.read();
        // The reader may have searched before there was anything to find.
        if (this.search.value && !this.matches.length) this.look();
        if (!isOpen || this.full) break;
        lost = 0;
        this.count();
        await new Promise((next) => setTimeout(next, POLL));
        while (document.hidden) {
          await new Promise((next) =>
            document.addEventListener("visibilitychange", next, { once: true }),
          );
        }
        if (!this.place.isConnected) return;
      } catch (error) {
        if (!this.place.isConnected) return;
        if (error.final) return this.say(error.message, true);
        lost = this.lines.size > before ? 1 : lost + 1;
        this.say("The connection broke off; reconnecting …", true);
        await new Promise((next) => setTimeout(next, PAUSES[Math.min(lost, PAUSES.length) - 1]));
      }
    }
    this.place.removeAttribute("data-live");
    this.count();
    this.draw();
    if (this.place.dataset.end !== undefined) this.setFollowing(false);
    this.reveal();
  }

  // Reads what there is by now; returns whether more will come.
  async read() {
    const address = new URL(this.place.dataset.log, location.href);
    address.searchParams.set("from", String(this.lines.size));
    const answer = await fetch(address);
    if (!answer.ok) {
      const error = new Error(`The log cannot be read (${answer.status}).`);
      error.final = answer.status < 500 && answer.status !== 429;
      throw error;
    }
    const isOpen = answer.headers.get("Kgym-Log") === "open";
    const reader = answer.body.getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return isOpen;
      if (!this.place.isConnected) return reader.cancel();
      if (this.lines.size + value.length > MOST) {
        await reader.cancel();
        this.full = true;
        return false;
      }
      this.lines.append(value);
      this.soon();
    }
  }

  soon() {
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => {
      this.due = false;
      this.count();
      this.draw();
      this.reveal();
    });
  }

  // Once the line that the address names has come, it is shown.
  reveal() {
    if (this.marked === null || this.revealed || this.lines.count <= this.marked) return;
    this.revealed = true;
    this.scrollTo(this.marked - Math.floor(this.rows / 3));
    this.place.scrollIntoView({ block: "center" });
    this.drawLines();
  }

  count() {
    const { count, size } = this.lines;
    const lines = `${count.toLocaleString("en")} ${count === 1 ? "line" : "lines"}`;
    const rest = this.full ? `; only the first ${size >> 20} MiB, download the rest` : "";
    const live = this.place.dataset.live === undefined ? "" : ", more as it comes";
    this.say(count || live ? lines + live + rest : "There is nothing in it.");
    const empty = !count && !live;
    this.view.hidden = empty;
    if (empty) for (const tool of this.tools) tool.hidden = true;
  }

  say(text, bad = false) {
    if (this.status.textContent !== text) this.status.textContent = text;
    this.status.classList.toggle("bad", bad);
  }

  // --- drawing --------------------------------------------------------------------------------

  get rows() {
    return Math.max(1, Math.floor(this.view.clientHeight / LINE));
  }

  get wrapped() {
    return this.wrap.getAttribute("aria-pressed") === "true";
  }

  // The last line that can stand at the top; wrapped lines may be as tall as the window.
  get lastTop() {
    return Math.max(0, this.lines.count - (this.wrapped ? 1 : this.rows));
  }

  get range() {
    return Math.max(0, Math.min(this.lastTop * LINE, TALLEST));
  }

  get top() {
    const range = this.range;
    return range ? Math.round((this.view.scrollTop / range) * this.lastTop) : 0;
  }

  scrollTo(line) {
    const wanted = Math.min(Math.max(0, line), this.lastTop);
    this.view.scrollTop = this.lastTop ? (wanted / this.lastTop) * this.range : 0;
  }

  scrolled() {
    const atEnd = this.view.scrollTop >= this.range - LINE;
    if (this.moved && !atEnd) this.setFollowing(false);
    this.moved = true;
    this.drawLines();
  }

  setFollowing(on) {
    this.following = on;
    this.follow.setAttribute("aria-pressed", String(on));
  }

  draw() {
    const tall = this.wrapped ? this.lines.count && 1000 : this.lines.count;
    this.view.style.height = `${Math.max(2, tall + 1) * LINE}px`; // within the style sheet's bound
    this.spacer.style.height = `${this.range}px`;
    this.shown.style.height = `${this.view.clientHeight}px`;
    if (this.following) {
      this.moved = false; // it is we who scroll
      this.scrollTo(this.lastTop);
    }
    this.drawLines();
  }

  drawLines() {
    const atEnd = this.following;
    const first = atEnd ? Math.max(0, this.lines.count - this.rows - 1) : this.top;
    const last = Math.min(this.lines.count, first + this.rows + 2);
    const chosen = this.matches[this.at];
    const made = [];
    for (let number = first; number < last; number++) {
      const line = document.createElement("div");
      const isChosen = number === chosen || number === this.marked;
      line.className = isChosen ? "log-line chosen" : "log-line";
      line.dataset.number = String(number + 1);
      line.textContent = visible(this.lines.text(number));
      made.push(line);
    }
    this.shown.classList.toggle("wrapped", this.wrapped);
    this.shown.classList.toggle("at-end", atEnd && this.lines.count > this.rows);
    this.shown.replaceChildren(...made);
  }

  // --- searching ------------------------------------------------------------------------------

  async look() {
    const words = this.search.value;
    this.matches = [];
    this.at = -1;
    if (!words) {
      this.hits.textContent = "";
      this.drawLines();
      return;
    }
    this.hits.textContent = "Searching …";
    await this.lines.find(words, () => this.search.value === words, this.matches);
    if (this.search.value !== words) return;
    this.step(1);
  }

  step(by) {
    const { length } = this.matches;
    if (!length) {
      this.hits.textContent = this.search.value ? "No match" : "";
      this.drawLines();
      return;
    }
    this.at = (this.at + by + length) % length;
    const of = `${(this.at + 1).toLocaleString("en")} of ${length.toLocaleString("en")}`;
    this.hits.textContent = of;
    this.setFollowing(false);
    this.scrollTo(this.matches[this.at] - Math.floor(this.rows / 3));
    this.drawLines();
  }
}

export function fillLogs() {
  for (const place of document.querySelectorAll(".log-window:not([data-filled])")) {
    place.dataset.filled = "";
    new LogWindow(place);
  }
}
