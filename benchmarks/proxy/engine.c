// An engine that answers from files, so fast that it is not what is measured: one thread, epoll, loopback only.
//
//   engine BODY STREAM RULES
//
// BODY answers a chat completion, STREAM (one event a line group, each ended by an empty line) a streamed one. RULES
// has lines "PATH NEEDLE FILE": the first whose path and needle ("-": any) are in a request answers it. The port is
// printed first. "POST /control?delay_us=N&gap_us=N" sets how long a whole answer takes and how far events are apart.
#include <sys/timerfd.h>

#include "sockets.h"

#define MAX_REQUEST (256 * 1024)
#define MAX_CONNECTIONS 1024
#define MAX_EVENTS 1024
#define MAX_RULES 32

typedef struct {
    char *data;
    size_t length;
} Bytes;

typedef struct {
    char path[64], needle[64];
    Bytes reply;
} Rule;

typedef struct {
    int fd;
    size_t have;
    char *in;
    Bytes out;         // what is being written ...
    size_t written;    // ... and how much of it went
    int event;         // the next event of a stream, or -1
    int64_t due_us;    // when the next part may be written; 0: no answer is under way
    bool blocked;
} Connection;

static Connection connections[MAX_CONNECTIONS];
static int high;  // connections at and above are unused
static Rule rules[MAX_RULES];
static int num_rules, num_events, epoll;
static Bytes body, events[MAX_EVENTS];
static Bytes stream_head = {
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n", 0};
static int64_t delay_us, gap_us;

static Bytes with_head(Bytes content) {
    Bytes whole = {malloc(content.length + 256), 0};
    int head = sprintf(whole.data, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n",
                       content.length);
    memcpy(whole.data + head, content.data, content.length);
    whole.length = (size_t)head + content.length;
    return whole;
}

static Bytes as_chunk(const char *data, size_t length) {
    Bytes chunk = {malloc(length + 32), 0};
    int head = sprintf(chunk.data, "%zx\r\n", length);
    memcpy(chunk.data + head, data, length);
    memcpy(chunk.data + head + length, "\r\n", 2);
    chunk.length = (size_t)head + length + 2;
    return chunk;
}

static void load(char **arguments) {
    size_t length;
    char *text = read_file(arguments[1], &length);
    body = with_head((Bytes){text, length});
    text = read_file(arguments[2], &length);
    for (char *start = text, *border; (border = strstr(start, "\n\n")); start = border + 2) {
        if (num_events + 2 >= MAX_EVENTS) exit(1);
        events[num_events++] = as_chunk(start, (size_t)(border + 2 - start));
    }
    // The last chunk and the end of the body go together, as servers write them.
    Bytes *last = &events[num_events - 1];
    memcpy(last->data + last->length, "0\r\n\r\n", 5);
    last->length += 5;
    FILE *file = fopen(arguments[3], "r");
    if (!file) fail(arguments[3]);
    char path[512];
    while (num_rules < MAX_RULES &&
           fscanf(file, "%63s %63s %511s", rules[num_rules].path, rules[num_rules].needle, path) == 3) {
        text = read_file(path, &length);
        rules[num_rules++].reply = with_head((Bytes){text, length});
    }
    fclose(file);
}

static void drop(Connection *c) {
    close(c->fd);
    free(c->in);
    *c = (Connection){.fd = -1};
}

static void watch(Connection *c, bool for_writing) {
    struct epoll_event event = {.events = EPOLLIN | (for_writing ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &event);
    c->blocked = for_writing;
}

// Write what is due of an answer; one event of a stream at a time, so that streams take turns.
static void advance(Connection *c, int64_t now) {
    ssize_t sent = send(c->fd, c->out.data + c->written, c->out.length - c->written, MSG_NOSIGNAL);
    if (sent < 0) {
        if (errno == EAGAIN) watch(c, true);
        else drop(c);
        return;
    }
    c->written += (size_t)sent;
    if (c->written < c->out.length) {
        watch(c, true);
        return;
    }
    if (c->blocked) watch(c, false);
    c->written = 0;
    if (c->event < 0 || c->event == num_events) {
        c->due_us = 0;
        return;
    }
    c->out = events[c->event++];
    c->due_us = c->event == 1 ? now : c->due_us + gap_us;
}

static void answer(Connection *c, Bytes reply, int64_t after_us) {
    c->out = reply;
    c->event = -1;
    c->due_us = now_us() + after_us;
}

static void respond(Connection *c, const char *content, size_t content_length) {
    if (!strncmp(c->in, "POST /control?", 14)) {
        sscanf(c->in, "POST /control?delay_us=%ld&gap_us=%ld", &delay_us, &gap_us);
        answer(c, rules[0].reply, 0);
        return;
    }
    const char *path = strchr(c->in, ' ') + 1;
    if (!strncmp(path, "/v1/chat/completions ", 21)) {
        bool streamed = memmem(content, content_length, "\"stream\":true", 13) ||
                        memmem(content, content_length, "\"stream\": true", 14);
        answer(c, streamed ? stream_head : body, streamed ? 0 : delay_us);
        if (streamed) c->event = 0;
        return;
    }
    for (int i = 0; i < num_rules; i++) {
        size_t length = strlen(rules[i].path);
        bool matches = !strncmp(path, rules[i].path, length) && path[length] == ' ';
        if (matches && (rules[i].needle[0] == '-' ||
                        memmem(content, content_length, rules[i].needle, strlen(rules[i].needle)))) {
            answer(c, rules[i].reply, 0);
            return;
        }
    }
    answer(c, rules[0].reply, 0);
}

static void receive(Connection *c) {
    ssize_t got = recv(c->fd, c->in + c->have, MAX_REQUEST - c->have, 0);
    if (got <= 0) {
        if (got == 0 || errno != EAGAIN) drop(c);
        return;
    }
    c->have += (size_t)got;
    c->in[c->have] = 0;
    char *end = memmem(c->in, c->have, "\r\n\r\n", 4);
    if (!end || c->due_us) return;
    size_t head = (size_t)(end + 4 - c->in);
    const char *declared = header_value(c->in, head, "content-length");
    size_t length = declared ? strtoul(declared, NULL, 10) : 0;
    if (head + length > MAX_REQUEST) {
        fprintf(stderr, "engine: a request of %zu bytes\n", head + length);
        exit(1);
    }
    if (c->have < head + length) return;
    respond(c, c->in + head, length);
    c->have -= head + length;
    memmove(c->in, c->in + head + length, c->have);
}

static void accept_all(int listener) {
    for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0;) {
        int slot = 0;
        while (slot < high && connections[slot].fd >= 0) slot++;
        if (slot == MAX_CONNECTIONS) {
            close(fd);
            continue;
        }
        if (slot == high) high++;
        without_delay(fd);
        Connection *c = &connections[slot];
        *c = (Connection){.fd = fd, .in = malloc(MAX_REQUEST + 1), .event = -1};
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
    }
}

int main(int count, char **arguments) {
    if (count != 4) {
        fprintf(stderr, "usage: engine BODY STREAM RULES\n");
        return 2;
    }
    load(arguments);
    stream_head.length = strlen(stream_head.data);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in address = loopback(0);
    socklen_t size = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 512)) fail("bind");
    getsockname(listener, (struct sockaddr *)&address, &size);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    epoll = epoll_create1(0);
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), timer_mark;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL}, ready[256];
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event);
    event.data.ptr = &timer_mark;
    epoll_ctl(epoll, EPOLL_CTL_ADD, timer, &event);
    for (;;) {
        int64_t now = now_us(), next = INT64_MAX;
        for (int i = 0; i < high; i++) {
            Connection *c = &connections[i];
            if (c->fd < 0 || !c->due_us || c->blocked) continue;
            if (c->due_us <= now) advance(c, now);
            if (c->fd >= 0 && c->due_us && !c->blocked && c->due_us < next) next = c->due_us;
        }
        if (next != INT64_MAX && next > now) {
            struct itimerspec at = {.it_value = {next / 1000000, next % 1000000 * 1000}};
            timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL);
        }
        int num = epoll_wait(epoll, ready, 256, next > now ? -1 : 0);
        for (int i = 0; i < num; i++) {
            Connection *c = ready[i].data.ptr;
            uint64_t expirations;
            if (!c) accept_all(listener);
            else if ((void *)c == &timer_mark) (void)!read(timer, &expirations, sizeof expirations);
            else if (c->fd >= 0 && ready[i].events & EPOLLOUT) watch(c, false);
            else if (c->fd >= 0) receive(c);
        }
    }
}
