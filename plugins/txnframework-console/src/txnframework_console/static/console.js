// Live updates of a view, and the token of one tab. The page works without this script.
"use strict";

const RETRY_MS = 3000;

function follow(url) {
  const pulse = document.getElementById("pulse");
  const text = document.getElementById("pulse-text");
  const show = (state, said) => {
    pulse.className = "pulse " + state;
    text.textContent = said;
  };
  const open = () => {
    const source = new EventSource(url);
    source.addEventListener("open", () => show("live", "live"));
    source.addEventListener("view", (event) => replace(event.data));
    source.addEventListener("error", () => {
      show("lost", "the console does not answer");
      // A browser gives up after an answer that is no stream, so this begins again.
      if (source.readyState === EventSource.CLOSED) setTimeout(open, RETRY_MS);
    });
    window.addEventListener("pagehide", () => source.close());
  };
  open();
}

// The server has escaped everything in this HTML, and the content security policy allows no script in it.
function replace(html) {
  const view = document.getElementById("view");
  const held = document.activeElement;
  const field = held && view.contains(held) && held.name ? held : null;
  const typed = field ? [field.name, field.value, field.selectionStart, field.selectionEnd] : null;
  const scrolled = Array.from(view.querySelectorAll(".scroll"), (one) => one.scrollLeft);
  view.innerHTML = html;
  view.querySelectorAll(".scroll").forEach((one, index) => { one.scrollLeft = scrolled[index] || 0; });
  if (!typed) return;
  const again = Array.from(view.querySelectorAll("input")).find((one) => one.name === typed[0]);
  if (!again) return;
  again.value = typed[1];
  again.focus();
  again.setSelectionRange(typed[2], typed[3]);
}

function keepToken() {
  const field = document.querySelector("[data-token]");
  const keep = document.querySelector("[data-keep-token]");
  if (!field || !keep) return;
  const kept = sessionStorage.getItem("token");
  if (kept !== null) {
    field.value = kept;
    keep.checked = true;
  }
  field.form.addEventListener("submit", () => {
    if (keep.checked) sessionStorage.setItem("token", field.value);
    else sessionStorage.removeItem("token");
  });
}

const live = document.body.dataset.live;
if (live) follow(live);
keepToken();
