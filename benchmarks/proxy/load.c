// Asks one server from N connections, each in a closed loop, and checks every answer: one thread, epoll, loopback only.
//
//   load PORT REQUEST CONNECTIONS SECONDS OUT
//
// REQUEST is the whole HTTP request. Asking ends after SECONDS; what is under way then is waited for. OUT gets one line
// "FIRST_US DONE_US" for each answer: microseconds from sending to the body's first byte and to its end. Prints
// "COUNT BAD SECONDS". An answer is bad unless its status is 200 and it ends as it should, a stream with [DONE].
#include "sockets.h"

#define BUFFER (512 * 1024)
#define MAX_CONNECTIONS 256

typedef struct {
    int fd;
    size_t have;
    char *in;
    size_t head;       // bytes of the head once it is whole
    size_t scanned;    // chunk borders before are known
    int64_t sent_us, first_us;
} Connection;

static int epoll, port;
static char *request;
static size_t request_length;
static long count, bad;
static FILE *out;

static void connect_to(Connection *c) {
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = loopback(port);
    if (connect(c->fd, (struct sockaddr *)&address, sizeof address)) fail("connect");
    without_delay(c->fd);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &event);
}

static void ask(Connection *c) {
    c->have = c->head = c->scanned = 0;
    c->first_us = 0;
    c->sent_us = now_us();
    if (send(c->fd, request, request_length, MSG_NOSIGNAL) != (ssize_t)request_length) fail("send");
}

// Whether a chunked body is whole; chunks are walked once.
static bool chunks_end(Connection *c) {
    for (;;) {
        char *start = c->in + c->scanned, *line = memmem(start, c->have - c->scanned, "\r\n", 2);
        if (!line) return false;
        size_t length = strtoul(start, NULL, 16), after = (size_t)(line - c->in) + 2 + length + 2;
        if (after > c->have) return false;
        if (!length) return true;
        c->scanned = after;
    }
}

static bool whole(Connection *c, bool *good) {
    if (!c->head) {
        char *end = memmem(c->in, c->have, "\r\n\r\n", 4);
        if (!end) return false;
        c->head = c->scanned = (size_t)(end + 4 - c->in);
    }
    if (!c->first_us && c->have > c->head) c->first_us = now_us();
    *good = !strncmp(c->in, "HTTP/1.1 200", 12);
    const char *length = header_value(c->in, c->head, "content-length");
    if (length) return c->have >= c->head + strtoul(length, NULL, 10);
    if (!header_value(c->in, c->head, "transfer-encoding")) fail("an answer without a length");
    if (!chunks_end(c)) return false;
    size_t tail = c->have - c->head < 256 ? c->have - c->head : 256;
    *good = *good && memmem(c->in + c->have - tail, tail, "[DONE]", 6);
    return true;
}

// One readable connection; whether its answer is whole.
static bool receive(Connection *c) {
    ssize_t got = recv(c->fd, c->in + c->have, BUFFER - c->have - 1, 0);
    if (got < 0 && errno == EAGAIN) return false;
    bool good = false;
    if (got > 0) {
        c->have += (size_t)got;
        c->in[c->have] = 0;
        if (!whole(c, &good)) return false;
        fprintf(out, "%ld %ld\n", c->first_us - c->sent_us, now_us() - c->sent_us);
        if (!good && !bad) fprintf(stderr, "load: a bad answer: %.1500s\n", c->in);
    }
    const char *kept = header_value(c->in, c->head, "connection");
    if (got <= 0 || (kept && !strncasecmp(kept, "close", 5))) {
        close(c->fd);
        connect_to(c);
    }
    count++;
    bad += !good;
    return true;
}

int main(int argument_count, char **arguments) {
    if (argument_count != 6) {
        fprintf(stderr, "usage: load PORT REQUEST CONNECTIONS SECONDS OUT\n");
        return 2;
    }
    port = atoi(arguments[1]);
    request = read_file(arguments[2], &request_length);
    int num = atoi(arguments[3]), under_way = 0;
    double seconds = atof(arguments[4]);
    if (!(out = fopen(arguments[5], "w"))) fail(arguments[5]);
    epoll = epoll_create1(0);
    static Connection connections[MAX_CONNECTIONS];
    int64_t begin = now_us(), end = begin + (int64_t)(seconds * 1e6), give_up = end + 60000000;
    for (int i = 0; i < num && i < MAX_CONNECTIONS; i++, under_way++) {
        connections[i].in = malloc(BUFFER);
        connect_to(&connections[i]);
        ask(&connections[i]);
    }
    struct epoll_event ready[MAX_CONNECTIONS];
    while (under_way) {
        int num_ready = epoll_wait(epoll, ready, MAX_CONNECTIONS, 1000);
        if (now_us() > give_up) fail("no answer for a minute");
        for (int i = 0; i < num_ready; i++) {
            Connection *c = ready[i].data.ptr;
            if (!receive(c)) continue;
            if (now_us() < end) ask(c);
            else under_way--;
        }
    }
    printf("%ld %ld %.6f\n", count, bad, (double)(now_us() - begin) / 1e6);
    return 0;
}
