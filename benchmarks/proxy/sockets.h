// What engine.c and load.c share: loopback sockets, time, and the little of HTTP/1.1 that both read.
#pragma once
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static inline void fail(const char *what) {
    perror(what);
    exit(1);
}

static inline int64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static inline struct sockaddr_in loopback(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static inline void without_delay(int fd) {
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

// A file's bytes, ended by a zero that does not count.
static inline char *read_file(const char *path, size_t *length) {
    FILE *file = fopen(path, "rb");
    if (!file) fail(path);
    fseek(file, 0, SEEK_END);
    *length = (size_t)ftell(file);
    rewind(file);
    char *data = malloc(*length + 1);
    if (!data || fread(data, 1, *length, file) != *length) fail(path);
    data[*length] = 0;
    fclose(file);
    return data;
}

// The value of a header in [head, head + length), or NULL; ends at CR.
static inline const char *header_value(const char *head, size_t length, const char *name) {
    size_t name_length = strlen(name);
    const char *end = head + length;
    for (const char *line = memchr(head, '\n', length); line && line + 1 < end;
         line = memchr(line + 1, '\n', (size_t)(end - line - 1))) {
        const char *start = line + 1;
        if ((size_t)(end - start) > name_length && !strncasecmp(start, name, name_length) && start[name_length] == ':') {
            start += name_length + 1;
            while (start < end && *start == ' ') start++;
            return start;
        }
    }
    return NULL;
}
