// A crawler of Crawlee as its own guide writes them. Two lines know that something else runs it: its arguments come as
// JSON, and its items are written into the folder that is kept. By hand: `node main.js`.
import { CheerioCrawler } from '@crawlee/cheerio'

const { site = 'http://127.0.0.1:8400/', max_pages = '60', delay_ms = '0' } = JSON.parse(process.env.CRAWL_ARGS ?? '{}')
const folder = process.env.CRAWL_FILES_DIR ?? '.'

const crawler = new CheerioCrawler({
  maxRequestsPerCrawl: Number(max_pages),
  maxConcurrency: 4,
  experiments: { requestLocking: false },
  async requestHandler({ request, $, enqueueLinks, pushData, log }) {
    log.info(request.loadedUrl)
    await new Promise((done) => setTimeout(done, Number(delay_ms)))
    await pushData({ url: request.loadedUrl, title: $('title').text() })
    await enqueueLinks()
  },
})

await crawler.run([site])
await crawler.exportData(`${folder}/items.json`)
