// What the pages of the guide need beyond links: code that can be copied, and a search over an index that the server made.
(function () {
  "use strict";
  document.body.classList.remove("no-script");

  // ---- copying ----

  // Browsers have the clipboard only where a page came over TLS or from this machine.
  function copy(text) {
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    var area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    var copied = document.execCommand("copy");
    area.remove();
    return copied ? Promise.resolve() : Promise.reject(new Error("not copied"));
  }

  document.querySelectorAll(".code .copy").forEach(function (button) {
    function say(text) {
      button.textContent = text;
      setTimeout(function () { button.textContent = "Copy"; }, 1500);
    }
    button.hidden = false;
    button.addEventListener("click", function () {
      copy(button.parentNode.querySelector("code").textContent).then(
        function () { say("Copied"); },
        function () { say("Not copied"); }
      );
    });
  });

  // ---- search ----

  var input = document.getElementById("guide-search");
  var list = document.getElementById("guide-found");
  var MOST = 20;
  var index = null;

  function load() {
    if (!index) {
      index = fetch("/guide/search.json").then(function (answer) {
        if (!answer.ok) throw new Error(String(answer.status));
        return answer.json();
      }).then(function (sections) {
        sections.forEach(function (section) {
          section.head = (section.page + " " + section.heading).toLowerCase();
          section.body = section.text.toLowerCase();
        });
        return sections;
      });
      // The next letter tries again.
      index.catch(function () { index = null; });
    }
    return index;
  }

  // How well a section fits: every word has to be in it, and counts more in a heading and at the begin of a word.
  function score(section, words) {
    var sum = 0;
    for (var word of words) {
      var inHead = section.head.indexOf(word);
      var inBody = section.body.indexOf(word);
      if (inHead < 0 && inBody < 0) return 0;
      if (inHead >= 0) sum += begins(section.head, inHead) ? 12 : 6;
      if (inBody >= 0) sum += begins(section.body, inBody) ? 2 : 1;
    }
    return section.heading ? sum : sum + 3;
  }

  function begins(text, at) {
    return at === 0 || !/[\p{L}\p{N}]/u.test(text[at - 1]);
  }

  function element(name, text) {
    var made = document.createElement(name);
    if (text) made.textContent = text;
    return made;
  }

  // The text around the first word that is in it, with the word marked.
  function around(section, words) {
    var line = element("small");
    var first = words.map(function (word) { return [section.body.indexOf(word), word.length]; })
      .filter(function (place) { return place[0] >= 0; })
      .sort(function (a, b) { return a[0] - b[0]; })[0];
    if (!first) {
      line.textContent = section.text.slice(0, 140);
      return line;
    }
    var begin = Math.max(0, first[0] - 50);
    var end = first[0] + first[1];
    line.append((begin > 0 ? "…" : "") + section.text.slice(begin, first[0]));
    line.append(element("mark", section.text.slice(first[0], end)));
    line.append(section.text.slice(end, end + 90) + (section.text.length > end + 90 ? "…" : ""));
    return line;
  }

  function show(items) {
    list.replaceChildren.apply(list, items.map(function (item) {
      var row = element("li");
      row.append(item);
      return row;
    }));
    list.hidden = items.length === 0;
  }

  function search() {
    var asked = input.value;
    var words = asked.toLowerCase().split(/\s+/).filter(Boolean);
    if (words.length === 0) return show([]);
    load().then(function (sections) {
      // Another letter was typed meanwhile.
      if (input.value !== asked) return;
      var found = sections
        .map(function (section) { return { section: section, score: score(section, words) }; })
        .filter(function (hit) { return hit.score > 0; })
        .sort(function (a, b) { return b.score - a.score; })
        .slice(0, MOST);
      if (found.length === 0) return show([element("p", "No page has all of these words.")]);
      show(found.map(function (hit) {
        var link = element("a");
        link.href = hit.section.address;
        link.append(element("b", hit.section.page), hit.section.heading ? " › " + hit.section.heading : "");
        link.append(around(hit.section, words));
        return link;
      }));
    }, function () {
      show([element("p", "The search index could not be loaded.")]);
    });
  }

  function step(by) {
    var links = Array.from(list.querySelectorAll("a"));
    var at = links.indexOf(document.activeElement) + by;
    if (at < 0) input.focus();
    else if (links[at]) links[at].focus();
  }

  input.addEventListener("focus", load);
  input.addEventListener("input", search);
  input.parentNode.addEventListener("keydown", function (event) {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      step(event.key === "ArrowDown" ? 1 : -1);
      event.preventDefault();
    } else if (event.key === "Escape") {
      input.value = "";
      show([]);
      input.focus();
    } else if (event.key === "Enter" && event.target === input) {
      var best = list.querySelector("a");
      if (best) best.click();
    }
  });
  document.addEventListener("keydown", function (event) {
    var typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      input.focus();
    }
  });
  document.addEventListener("click", function (event) {
    // A link to a place of this page closes the list, too.
    if (!input.parentNode.contains(event.target) || event.target.closest("#guide-found a")) list.hidden = true;
  });
})();
