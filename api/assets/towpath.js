// What the pages need beyond htmx: they keep still while nobody looks, and say when the server is gone.
(function () {
  "use strict";
  var body = document.body;
  body.classList.remove("no-script");

  // Whether something is being typed or selected there, which a newer page would take away.
  function inHand(live) {
    var focused = document.activeElement;
    var typing = focused && live.contains(focused) && /^(INPUT|SELECT|TEXTAREA)$/.test(focused.tagName);
    return typing || String(window.getSelection() || "") !== "";
  }

  // A page in a background tab asks for nothing; a page that somebody is at is not replaced, nor by an answer that was
  // already on its way.
  body.addEventListener("htmx:beforeRequest", function (event) {
    var source = event.detail.elt;
    if (source.hasAttribute("data-live") && (document.hidden || inHand(source))) event.preventDefault();
  });
  body.addEventListener("htmx:beforeSwap", function (event) {
    var source = event.detail.requestConfig.elt;
    if (source.hasAttribute("data-live") && inHand(source)) event.detail.shouldSwap = false;
  });

  function lost(is) { body.classList.toggle("is-lost", is); }
  body.addEventListener("htmx:sendError", function () { lost(true); });
  body.addEventListener("htmx:timeout", function () { lost(true); });
  body.addEventListener("htmx:afterOnLoad", function () { lost(false); });
  body.addEventListener("htmx:responseError", function (event) {
    // The session is over: the server answers with the sign-in page.
    if (event.detail.xhr.status === 401) location.reload();
    else lost(true);
  });

  // Buttons that cannot be taken back ask first.
  document.addEventListener("submit", function (event) {
    var question = event.target.getAttribute("data-confirm");
    if (question && !window.confirm(question)) event.preventDefault();
  });
})();
