// Search runs in a web worker, which browsers do not start for pages that are opened as files.
// For these, the worker's script runs in a hidden frame of the page instead.
(() => {
  if (location.protocol !== "file:") return;

  class FrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      this.waiting = [];

      const inner = this.frame.contentWindow;
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inner.document.createElement("script");
      script.src = new URL(url, document.baseURI);
      script.onload = () => this.ready();
      script.onerror = () => this.dispatchEvent(new ErrorEvent("error"));
      inner.document.body.append(script);
    }

    ready() {
      const waiting = this.waiting;
      this.waiting = null;
      waiting.forEach((data) => this.postMessage(data));
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  }

  window.Worker = FrameWorker;
})();
