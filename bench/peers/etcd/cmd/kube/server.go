package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// server is a process that says when it serves.
type server struct {
	command []string
	process *exec.Cmd
	mutex   sync.Mutex
	killed  time.Time
	ready   time.Time
}

func start(command []string) (*server, error) {
	if len(command) == 0 {
		return nil, errors.New("usage: kube [flags] -- COMMAND OF THE SERVER...")
	}
	made := &server{command: command}
	return made, made.run()
}

// run starts the process and waits until it serves; its words are shown if it does not.
func (s *server) run() error {
	process := exec.Command(s.command[0], s.command[1:]...)
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	process.Stdout, process.Stderr = write, write
	err = process.Start()
	write.Close()
	if err != nil {
		return err
	}
	serves := make(chan error, 1)
	go listen(read, serves)
	select {
	case err = <-serves:
	case <-time.After(time.Minute):
		err = errors.New("it does not serve within a minute")
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.process, s.ready = process, time.Now()
	return err
}

func listen(read *os.File, serves chan<- error) {
	defer read.Close()
	said := []string{}
	words := bufio.NewScanner(read)
	for words.Scan() {
		said = append(said, words.Text())
		if strings.Contains(words.Text(), "ready to serve client requests") {
			serves <- nil
			_, _ = io.Copy(io.Discard, read)
			return
		}
	}
	serves <- fmt.Errorf("the server has ended:\n%s", strings.Join(said, "\n"))
}

func (s *server) kill() {
	if s.process != nil {
		_ = s.process.Process.Kill()
		_ = s.process.Wait()
	}
}

// again kills it and starts it anew.
func (s *server) again() error {
	s.mutex.Lock()
	s.killed, s.ready = time.Now(), time.Time{}
	s.mutex.Unlock()
	s.kill()
	return s.run()
}

// wasDown tells whether a call that began then, and has ended now, may have met a server that was not there.
func (s *server) wasDown(began time.Time) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return !s.killed.IsZero() && (s.ready.IsZero() || began.Before(s.ready.Add(grace)))
}
