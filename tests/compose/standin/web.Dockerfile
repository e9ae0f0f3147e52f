# Stands for Prometheus, Grafana and Alertmanager: whether they are up is all that is asked here.
ARG BASE=hintloop/teacher:0.1.0
FROM ${BASE}
USER 0:0
COPY tests/compose/standin/wget /usr/local/bin/wget
COPY tests/compose/standin/web.py /opt/standin/web.py
RUN install -d -o 65534 -g 65534 /prometheus /alertmanager && install -d -o 472 -g 0 /var/lib/grafana
ENTRYPOINT ["python", "/opt/standin/web.py"]
