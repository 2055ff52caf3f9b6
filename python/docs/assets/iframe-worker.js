// Search in a folder, without a server: browsers start no worker from file://. There, this one runs a worker's script in
// a hidden frame. The theme looks for the name IFrameWorker.
(function () {
  "use strict"
  if (location.protocol !== "file:") return

  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.appendChild(this.frame)
      this.inner = this.frame.contentWindow
      this.inner.postMessage = (data) => {
        setTimeout(() => this.dispatchEvent(new MessageEvent("message", { data })))
      }
      this.inner.importScripts = (...urls) =>
        urls.reduce((done, each) => done.then(() => this.load(each)), Promise.resolve())
      this.ready = this.load(new URL(url, location.href).href)
    }

    load(url) {
      return new Promise((resolve, reject) => {
        const script = this.inner.document.createElement("script")
        script.src = url
        script.onload = resolve
        script.onerror = () => reject(new Error("cannot load " + url))
        this.inner.document.body.appendChild(script)
      })
    }

    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }
  }
  window.Worker = window.IFrameWorker
})()
